# find_package(LapwingInsitu REQUIRED HINTS <the folder that `python -m lapwing.insitu --cmakedir` prints>)
#
# Targets:
#   Lapwing::insitu        include folder and library, which programs in the build tree find at run time
#   Lapwing::insitu_stub   lapwing_insitu_stub.h: no library to link; it is loaded at run time if it is found
# Variables:
#   LapwingInsitu_FORTRAN  path of lapwing_insitu.f90, compile it together with a Fortran solver
#   LapwingInsitu_LIBRARY  path of the library; empty if lapwing was installed without a compiler

get_filename_component(LapwingInsitu_INCLUDE_DIR "${CMAKE_CURRENT_LIST_DIR}/.." ABSOLUTE)
get_filename_component(LapwingInsitu_LIBRARY "${CMAKE_CURRENT_LIST_DIR}/../../../liblapwing_insitu.so" ABSOLUTE)
set(LapwingInsitu_FORTRAN "${LapwingInsitu_INCLUDE_DIR}/lapwing_insitu.f90")

# A target with the include folder, unless it exists already, and one more property
function(_lapwing_insitu_target name kind property value)
  if(NOT TARGET ${name})
    add_library(${name} ${kind} IMPORTED)
    set_property(TARGET ${name} PROPERTY INTERFACE_INCLUDE_DIRECTORIES "${LapwingInsitu_INCLUDE_DIR}")
    set_property(TARGET ${name} PROPERTY ${property} "${value}")
  endif()
endfunction()

_lapwing_insitu_target(Lapwing::insitu_stub INTERFACE INTERFACE_LINK_LIBRARIES "${CMAKE_DL_LIBS}")
if(EXISTS "${LapwingInsitu_LIBRARY}")
  _lapwing_insitu_target(Lapwing::insitu SHARED IMPORTED_LOCATION "${LapwingInsitu_LIBRARY}")
else()
  set(LapwingInsitu_LIBRARY "")
  if(NOT LapwingInsitu_FIND_QUIETLY)
    message(STATUS "LapwingInsitu: liblapwing_insitu.so was not built; only Lapwing::insitu_stub is available")
  endif()
endif()
