#include "gpu/lzma.h"

#include <algorithm>
#include <cstdint>

namespace lapwing::lzma {
namespace {

using Probability = uint16_t;

template <int N>
struct Probabilities {
  Probability at[N];
  Probabilities() { std::fill_n(at, N, Probability(1024)); }
  Probability& operator[](size_t i) { return at[i]; }
};

class Decoder {
 public:
  Decoder(const std::string& stream, std::string* out)
      : next_(reinterpret_cast<const uint8_t*>(stream.data())), end_(next_ + stream.size()),
        out_(reinterpret_cast<uint8_t*>(out->data())), size_(out->size()) {}

  bool run() {
    if (byte()) return false;
    for (int i = 0; i < 4; i++) code_ = code_ << 8 | byte();
    while (good_ && at_ < size_) {
      const size_t step = at_ & ((1 << POSITION) - 1);
      if (!bit(is_match_[state_ * STEPS + step])) {
        literal();
      } else if (!bit(is_repeat_[state_])) {
        last_[3] = last_[2], last_[2] = last_[1], last_[1] = last_[0];
        const unsigned length = lengths_.read(*this, step);
        last_[0] = distance(length);
        copy(length + 2);
        state_ = state_ < 7 ? 7 : 10;
      } else if (bit(is_older_[state_])) {
        repeat_older();
        repeat(step);
      } else if (bit(is_long_[state_ * STEPS + step])) {
        repeat(step);
      } else {
        copy(1);
        state_ = state_ < 7 ? 9 : 11;
      }
    }
    return good_;
  }

 private:
  static constexpr size_t STATES = 12, STEPS = 16;

  uint8_t byte() {
    good_ = good_ && next_ < end_;
    return good_ ? *next_++ : 0;
  }

  void refill() {
    if (range_ >> 24) return;
    range_ <<= 8;
    code_ = code_ << 8 | byte();
  }

  unsigned bit(Probability& p) {
    const uint32_t bound = (range_ >> 11) * p;
    const unsigned value = code_ >= bound;
    if (value) {
      range_ -= bound, code_ -= bound;
      p = Probability(p - (p >> 5));
    } else {
      range_ = bound;
      p = Probability(p + ((2048 - p) >> 5));
    }
    refill();
    return value;
  }

  uint32_t plain_bits(int count) {
    uint32_t value = 0;
    while (count--) {
      range_ >>= 1;
      const unsigned next = code_ >= range_;
      if (next) code_ -= range_;
      value = value << 1 | next;
      refill();
    }
    return value;
  }

  unsigned tree(Probability* p, int bits) {
    unsigned node = 1;
    for (int i = 0; i < bits; i++) node = node << 1 | bit(p[node]);
    return node - (1u << bits);
  }

  unsigned reversed_tree(Probability* p, int bits) {
    unsigned node = 1, value = 0;
    for (int i = 0; i < bits; i++) {
      const unsigned next = bit(p[node]);
      node = node << 1 | next;
      value |= next << i;
    }
    return value;
  }

  struct Lengths {
    Probabilities<2> choice;
    Probabilities<STEPS * 8> low, middle;
    Probabilities<256> high;
    unsigned read(Decoder& from, size_t step) {
      if (!from.bit(choice[0])) return from.tree(&low[step * 8], 3);
      if (!from.bit(choice[1])) return 8 + from.tree(&middle[step * 8], 3);
      return 16 + from.tree(high.at, 8);
    }
  };

  void literal() {
    constexpr int SHIFT = 8 - LITERAL_CONTEXT;
    const size_t before = at_ ? out_[at_ - 1] : 0, place = at_ & ((1 << LITERAL_POSITION) - 1);
    Probability* p = &literals_[0x300 * ((place << LITERAL_CONTEXT) + (before >> SHIFT))];
    unsigned symbol = 1;
    if (state_ >= 7 && last_[0] < at_) {
      unsigned match = out_[at_ - last_[0] - 1], expected, found;
      do {
        expected = match >> 7 & 1;
        match <<= 1;
        found = bit(p[((1 + expected) << 8) + symbol]);
        symbol = symbol << 1 | found;
      } while (found == expected && symbol < 256);
    }
    while (symbol < 256) symbol = symbol << 1 | bit(p[symbol]);
    out_[at_++] = uint8_t(symbol);
    state_ = state_ < 4 ? 0 : state_ < 10 ? state_ - 3 : state_ - 6;
  }

  uint32_t distance(unsigned length) {
    const unsigned slot = tree(&slots_[std::min(length, 3u) * 64], 6);
    if (slot < 4) return slot;
    const int bits = int(slot >> 1) - 1;
    uint32_t value = (2 | (slot & 1)) << bits;
    if (slot < 14) return value + reversed_tree(&near_[value - slot], bits);
    value += plain_bits(bits - 4) << 4;
    return value + reversed_tree(align_.at, 4);
  }

  // The distance before the last one, or one of the two before that, becomes the last.
  void repeat_older() {
    uint32_t chosen = last_[1];
    if (bit(is_third_[state_])) {
      chosen = last_[2];
      if (bit(is_fourth_[state_])) chosen = last_[3], last_[3] = last_[2];
      last_[2] = last_[1];
    }
    last_[1] = last_[0];
    last_[0] = chosen;
  }

  void repeat(size_t step) {
    copy(repeat_lengths_.read(*this, step) + 2);
    state_ = state_ < 7 ? 8 : 11;
  }

  // A distance beyond the start or a length beyond the end is damage: also the mark of the end, which is never needed here.
  void copy(size_t length) {
    good_ = good_ && last_[0] < at_ && length <= size_ - at_;
    if (!good_) return;
    for (; length; length--, at_++) out_[at_] = out_[at_ - last_[0] - 1];
  }

  const uint8_t *next_, *end_;
  uint8_t* out_;
  size_t size_, at_ = 0;
  uint32_t range_ = 0xffffffff, code_ = 0, last_[4] = {};
  unsigned state_ = 0;
  bool good_ = true;
  Probabilities<STATES * STEPS> is_match_, is_long_;
  Probabilities<STATES> is_repeat_, is_older_, is_third_, is_fourth_;
  Probabilities<4 * 64> slots_;
  Probabilities<128> near_;
  Probabilities<16> align_;
  Lengths lengths_, repeat_lengths_;
  Probabilities<(0x300 << (LITERAL_CONTEXT + LITERAL_POSITION))> literals_;
};

}  // namespace

std::string decode(const std::string& stream, size_t size) {
  std::string out(size, '\0');
  return Decoder(stream, &out).run() ? out : "";
}

}  // namespace lapwing::lzma
