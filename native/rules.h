// Rules that follow from measured records: which engine was the fastest, by order and batch.
#pragma once
#include <string>
#include <vector>

#include "frame.h"

namespace lapwing {

// Only in rules: part of a spectrum, with the number of eigenvalues in place of the batch, and the operations that
// have routines of their own for a kind of matrix.
enum RuleOp : int32_t { EIGH_PART = N_OPS, SOLVE_POS, SOLVE_SYMMETRIC, INVERSE_POS, SLOGDET_POS, N_RULE_OPS };
constexpr const char* RULE_OP_NAMES[N_RULE_OPS - N_OPS] = {"eigh_part", "solve_pos", "solve_symmetric", "inverse_pos",
                                                           "slogdet_pos"};

// Bounds are inclusive. The first rule that fits decides.
struct Rule {
  int32_t op, device, dtype, engine;
  int64_t n_min, n_max, batch_min, batch_max;
  std::string source;  // "the shipped record of NVIDIA H200"
  bool newest;         // it holds beside the newest copy of cuSOLVER alone
};

// Replaces the rules for one kind of hardware: "" is this machine's CPU, else the name of a GPU.
void set_rules(const char* hardware, std::vector<Rule> rules);

// The rules for that hardware, in their order; they stay valid until the process ends.
const std::vector<Rule>& rules_of(const char* hardware);

// The operation whose rules apply to the matrices of the frame.
int32_t rule_op(const Frame& frame);

bool fits(const Rule& rule, const Frame& frame, int32_t op, int64_t batch);

}  // namespace lapwing
