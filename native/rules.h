// Rules that follow from measured records: which engine was the fastest, by order and batch.
#pragma once
#include <string>
#include <vector>

#include "frame.h"

namespace lapwing {

// In rules alone: part of a spectrum, where the number of eigenvalues takes the place of the batch.
constexpr int32_t EIGH_PART = N_OPS;

// Bounds are inclusive. The first rule that fits decides.
struct Rule {
  int32_t op, device, dtype, engine;
  int64_t n_min, n_max, batch_min, batch_max;
  std::string source;  // "the shipped record of NVIDIA H200"
};

// Replaces the rules for one kind of hardware: "" is this machine's CPU, else the name of a GPU.
void set_rules(const char* hardware, std::vector<Rule> rules);

// The rules for that hardware, in their order; they stay valid until the process ends.
const std::vector<Rule>& rules_of(const char* hardware);

bool fits(const Rule& rule, const Frame& frame, int32_t op, int64_t batch);

}  // namespace lapwing
