// Compiled device code on disk: per user, written atomically, checked before use.
#pragma once
#include <cstdint>
#include <string>

namespace lapwing::cubin_cache {

void set_folder(const char* folder);  // "" turns the cache off

// The binary stored under exactly this key, or "" if there is none, or it is damaged, foreign or in an unsafe folder.
std::string read(const std::string& key);
void write(const std::string& key, const std::string& binary);

uint64_t hash(const std::string& text, uint64_t seed);  // FNV-1a

}  // namespace lapwing::cubin_cache
