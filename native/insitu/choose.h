// Chooses the Python to start.
#pragma once

#include <string>

namespace lapwing::insitu {

struct Interpreter {
  std::string program;  // sys.executable, from which Python finds its virtual environment
  std::string version;  // "3.11"
  std::string library;  // path of its libpython
};

// The first interpreter that has lapwing, in this order: LAPWING_INSITU_PYTHON (then no other), $VIRTUAL_ENV/bin/python, the
// one that this library is installed for, python3 on the PATH. Returns "", or the reasons why there is none.
std::string choose(Interpreter* chosen);

}  // namespace lapwing::insitu
