#include "rules.h"

#include <atomic>
#include <map>
#include <mutex>
#include <utility>

#include "operations.h"

namespace lapwing {
namespace {

// Replaced as a whole; an old table is left alive, since another thread may be reading it.
using Table = std::map<std::string, std::vector<Rule>, std::less<>>;
std::atomic<const Table*> table{nullptr};

// cuSOLVER factors one matrix after the other, and up to this order one does not fill the GPU: what was measured with one
// matrix holds for one.
constexpr int64_t FILLS_THE_GPU = 4096;

// Systems are measured with one right-hand side. With more than this many the built-in limits decide.
constexpr int64_t FEW_COLUMNS = 8;

// Systems have k columns; rectangular matrices are measured as squares.
bool is_measured_shape(const Frame& frame) {
  if (is_rectangular(frame.op)) return frame.size[1] == frame.size[2];
  return (frame.op != SOLVE && frame.op != TRIANGULAR) || frame.size[2] <= FEW_COLUMNS;
}

}  // namespace

void set_rules(const char* hardware, std::vector<Rule> rules) {
  static std::mutex writing;
  std::lock_guard<std::mutex> hold(writing);
  auto* next = table.load() ? new Table(*table.load()) : new Table;
  (*next)[hardware] = std::move(rules);
  table = next;
}

const std::vector<Rule>& rules_of(const char* hardware) {
  static const std::vector<Rule> none;
  const Table* all = table.load();
  if (!all) return none;
  auto entry = all->find(hardware);
  return entry == all->end() ? none : entry->second;
}

int32_t rule_op(const Frame& frame) {
  if (frame.op == SOLVE && (frame.flags & (SYMMETRIC | SELF_ADJOINT))) return SOLVE_SYMMETRIC;
  if (!(frame.flags & POS)) return frame.op;
  switch (frame.op) {
    case SOLVE: return SOLVE_POS;
    case INVERSE: return INVERSE_POS;
    case SLOGDET: case DET: return SLOGDET_POS;
    default: return frame.op;
  }
}

bool fits(const Rule& rule, const Frame& frame, int32_t op, int64_t batch) {
  const int64_t n = frame.size[1];
  if (rule.op != op || rule.device != frame.device || rule.dtype != frame.dtype) return false;
  if (!is_measured_shape(frame)) return false;
  if (op == CHOLESKY && (rule.engine == CUSOLVER || rule.engine == ROCSOLVER) && n <= FILLS_THE_GPU && batch > 1) return false;
  return rule.n_min <= n && n <= rule.n_max && rule.batch_min <= batch && batch <= rule.batch_max;
}

}  // namespace lapwing
