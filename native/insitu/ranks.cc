#include "ranks.h"

#include <dlfcn.h>

namespace lapwing::insitu {
namespace {

// A communicator is an int in MPICH and similar libraries, and a pointer in Open MPI: both fit a register of this size. Ranks
// are counted by splitting, not by a reduction, because a reduction needs constants of a particular mpi.h.
using Handle = uintptr_t;

template <class Function>
bool find(Function** function, const char* name) {
  *function = reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
  return *function;
}

}  // namespace

bool all_ready(int64_t comm_f, bool ready) {
  int (*initialized)(int*), (*finalized)(int*), (*size)(Handle, int*), (*split)(Handle, int, int, Handle*), (*release)(Handle*);
  Handle (*from_fortran)(int);
  if (!find(&initialized, "MPI_Initialized") || !find(&finalized, "MPI_Finalized") || !find(&size, "MPI_Comm_size") ||
      !find(&split, "MPI_Comm_split") || !find(&release, "MPI_Comm_free"))
    return ready;
  int begun = 0, over = 0;
  if (initialized(&begun) || finalized(&over) || !begun || over) return ready;
  // in MPICH the conversion is a macro, and the handles are equal
  Handle comm = static_cast<uint32_t>(comm_f);
  if (find(&from_fortran, "MPI_Comm_f2c")) comm = from_fortran(static_cast<int>(comm_f));
  Handle alike = 0;  // the ranks with the same answer as this one
  int all = 0, same = 0;
  if (size(comm, &all) || split(comm, ready, 0, &alike) || size(alike, &same)) return ready;
  release(&alike);
  return ready && same == all;
}

}  // namespace lapwing::insitu
