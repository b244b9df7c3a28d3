#include "gpu/kernel_pack.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>

#include "gpu/cubin_cache.h"
#include "gpu/lzma.h"

namespace lapwing::kernel_pack {
namespace {

using cubin_cache::hash;

const char MAGIC[8] = {'L', 'W', 'P', 'A', 'C', 'K', '0', '1'};

// The file: header, entries in the order of their keys, chunks, what Python alone reads, the compressed chunks.
struct Header {
  char magic[8];
  uint32_t architecture, kernels, chunks, text;
  uint64_t index_hash;
};
struct Entry {
  Key key;
  uint64_t hash;
  uint32_t chunk, start, size, unused;
};
struct Chunk {
  uint64_t place;
  uint32_t stored, size;
};

constexpr uint32_t MOST_KERNELS = 1 << 20, LARGEST_CHUNK = 1 << 28;

class File {
 public:
  explicit File(const std::string& path) : number_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
  ~File() {
    if (number_ >= 0) close(number_);
  }
  File(const File&) = delete;
  bool is_open() const { return number_ >= 0; }
  bool status(struct stat* s) const { return fstat(number_, s) == 0; }
  bool read(void* to, size_t bytes, uint64_t place) const {
    auto* at = static_cast<char*>(to);
    while (bytes) {
      const ssize_t count = pread(number_, at, bytes, off_t(place));
      if (count <= 0) return false;
      at += count, bytes -= size_t(count), place += uint64_t(count);
    }
    return true;
  }

 private:
  int number_;
};

std::mutex mutex;
std::string places, trusted;
// The answers of any_for() by compute capability: every call asks, and must not wait.
enum Answer : int8_t { UNKNOWN, NO, YES };
std::atomic<int8_t> answers[256];

// Whoever can write to a pack can run code as its user: that may be the user, root and the owner of the installation.
bool safe(const File& file, const std::string& path) {
  if (!trusted.empty() && path.compare(0, trusted.size() + 1, trusted + "/") == 0) return true;
  struct stat s, installation;
  if (!file.status(&s) || !S_ISREG(s.st_mode) || s.st_mode & (S_IWGRP | S_IWOTH)) return false;
  if (s.st_uid == geteuid() || s.st_uid == 0) return true;
  return !stat(trusted.c_str(), &installation) && installation.st_uid == s.st_uid;
}

class Pack {
 public:
  explicit Pack(const std::string& path) : path_(path) { problem_ = open_index(); }

  const std::string& problem() const { return problem_; }
  int architecture() const { return int(header_.architecture); }

  std::string find(const Key& key) const {
    const auto at = std::lower_bound(entries_.begin(), entries_.end(), key, [](const Entry& e, const Key& k) { return e.key < k; });
    if (at == entries_.end() || !(at->key == key) || at->chunk >= chunks_.size()) return "";
    const Chunk& chunk = chunks_[at->chunk];
    if (chunk.size > LARGEST_CHUNK || chunk.stored > LARGEST_CHUNK) return "";
    const File file(path_);
    std::string stored(chunk.stored, '\0');
    if (!file.is_open() || !safe(file, path_) || !file.read(stored.data(), stored.size(), chunk.place)) return "";
    const std::string kernels = lzma::decode(stored, chunk.size);
    if (kernels.size() < at->start || kernels.size() - at->start < at->size) return "";
    std::string binary = kernels.substr(at->start, at->size);
    return hash(binary, 0) == at->hash ? binary : "";
  }

  Description describe() const { return {path_, problem_, architecture(), int64_t(entries_.size())}; }

 private:
  std::string open_index() {
    const File file(path_);
    if (!file.is_open()) return "it cannot be read";
    if (!safe(file, path_)) return "others can write to it";
    if (!file.read(&header_, sizeof header_, 0) || std::memcmp(header_.magic, MAGIC, sizeof MAGIC)) return "it is no kernel pack";
    if (header_.kernels > MOST_KERNELS || header_.chunks > MOST_KERNELS) return "it is damaged";
    const size_t entries = header_.kernels * sizeof(Entry), chunks = header_.chunks * sizeof(Chunk);
    std::string index(entries + chunks, '\0');
    if (!file.read(index.data(), index.size(), sizeof header_) || hash(index, 0) != header_.index_hash) return "it is damaged";
    entries_.resize(header_.kernels);
    chunks_.resize(header_.chunks);
    if (entries) std::memcpy(entries_.data(), index.data(), entries);
    if (chunks) std::memcpy(chunks_.data(), index.data() + entries, chunks);
    return "";
  }

  std::string path_, problem_;
  Header header_{};
  std::vector<Entry> entries_;
  std::vector<Chunk> chunks_;
};

bool is_file(const std::string& path) {
  struct stat s;
  return !stat(path.c_str(), &s) && S_ISREG(s.st_mode);
}

// Code for compute capability 8.0 runs on 8.6, not the other way round, and not on 9.0.
bool serves(int architecture, int compute_capability) {
  return architecture <= compute_capability && architecture / 10 == compute_capability / 10;
}

// The files that may hold kernels for such a GPU. Each is opened once in the life of the process.
const std::vector<const Pack*>& packs_for(int compute_capability) {
  static std::map<std::string, std::unique_ptr<Pack>> opened;
  static std::map<std::pair<std::string, int>, std::vector<const Pack*>> known;
  std::lock_guard<std::mutex> hold(mutex);
  const auto [it, is_new] = known.try_emplace({places, compute_capability});
  if (!is_new) return it->second;
  const auto add = [&](const std::string& path) {
    auto& pack = opened[path];
    if (!pack) pack = std::make_unique<Pack>(path);
    if (!pack->problem().empty() || serves(pack->architecture(), compute_capability)) it->second.push_back(pack.get());
  };
  for (size_t start = 0; start < places.size();) {
    const size_t end = std::min(places.find(':', start), places.size());
    const std::string place = places.substr(start, end - start);
    start = end + 1;
    if (is_file(place)) add(place);
    for (int a = compute_capability; a >= compute_capability / 10 * 10; a--) {
      const std::string path = place + "/sm_" + std::to_string(a) + ".pack";
      if (is_file(path)) add(path);
    }
  }
  return it->second;
}

}  // namespace

void set_places(const char* list, const char* folder) {
  std::lock_guard<std::mutex> hold(mutex);
  places = list;
  trusted = folder;
  for (auto& answer : answers) answer = UNKNOWN;
}

Key key_of(const std::string& text) { return {hash(text, 0), hash(text, 0x9e3779b97f4a7c15ull)}; }

std::string find(const Key& key, int compute_capability) {
  for (const Pack* pack : packs_for(compute_capability)) {
    std::string binary = pack->problem().empty() ? pack->find(key) : "";
    if (!binary.empty()) return binary;
  }
  return "";
}

std::vector<Description> describe(int compute_capability) {
  std::vector<Description> all;
  for (const Pack* pack : packs_for(compute_capability)) all.push_back(pack->describe());
  return all;
}

bool any_for(int compute_capability) {
  auto& answer = answers[compute_capability & 255];
  if (answer == UNKNOWN) {
    bool any = false;
    for (const Pack* pack : packs_for(compute_capability)) any = any || pack->problem().empty();
    answer = any ? YES : NO;
  }
  return answer == YES;
}

}  // namespace lapwing::kernel_pack
