! lapwing_insitu.f90: the interface of lapwing_insitu.h for Fortran 2018. Compile this file together with the solver, and link
! with the flags that `python -m lapwing.insitu --libs` prints. It includes lapwing_insitu_field.inc from the same folder: if you
! copy one of the two files, copy both.
!
!   use lapwing_insitu
!   type(c_ptr) :: run
!   run = insitu_init('analysis.py')
!   do n = 0, steps - 1
!     call advance(u)
!     status = insitu_field(run, 'u', u)
!     if (insitu_step(run, n, time) == INSITU_STOP) exit
!   end do
!   status = insitu_finalize(run)
!
! Arrays of any rank are passed without a copy, with their column-major strides: u(i, j) is u[i-1, j-1] in Python. Sections such as
! u(1:n:2, :) are passed without a copy too (up to rank 4). The memory is used until insitu_step returns. The compiler does not
! know that, so the array should have the TARGET attribute, especially with writable=.true.
module lapwing_insitu
  use, intrinsic :: iso_c_binding
  use, intrinsic :: iso_fortran_env, only: int32, int64, real32, real64
  implicit none
  private
  public :: c_ptr, insitu_checkpoint, insitu_device, insitu_error, insitu_field, insitu_finalize, insitu_init, insitu_mesh
  public :: insitu_restore, insitu_step, insitu_version
  integer(c_int), parameter, public :: INSITU_OK = 0, INSITU_WARN = 1, INSITU_STOP = 2, INSITU_ERR = -1
  integer(c_int32_t), parameter, public :: INSITU_CPU = 1, INSITU_CUDA = 2, INSITU_CUDA_HOST = 3, INSITU_ROCM = 10, &
                                           INSITU_ROCM_HOST = 11, INSITU_CUDA_MANAGED = 13

  ! The device of a field (a DLPack device type), and the stream on which the solver computes it
  type, bind(c) :: insitu_device
    integer(c_int32_t) :: device_type = 1
    integer(c_int32_t) :: device_id = 0
    type(c_ptr) :: stream = c_null_ptr
  end type

  type, bind(c) :: array_info
    type(c_ptr) :: data = c_null_ptr, shape = c_null_ptr, strides = c_null_ptr
    integer(c_int32_t) :: ndim = 0, bits = 64
    character(kind=c_char) :: code = 'f'
    type(insitu_device) :: device
  end type

  type, bind(c) :: mesh_info
    integer(c_int32_t) :: ndim = 0
    type(c_ptr) :: global_shape = c_null_ptr, offset = c_null_ptr, spacing = c_null_ptr, origin = c_null_ptr
    type(c_ptr) :: weights = c_null_ptr, coordinates = c_null_ptr
    type(c_ptr) :: reserved(4) = c_null_ptr
  end type

  interface
    type(c_ptr) function c_init(script, options, comm) bind(c, name='insitu_init')
      import :: c_ptr, c_char, c_int64_t
      character(kind=c_char), intent(in) :: script(*), options(*)
      integer(c_int64_t), value :: comm
    end function
    integer(c_int) function c_field(ctx, name, data, ndim, shape, strides, code, bits, device, writable) &
      bind(c, name='insitu_field')
      import :: c_ptr, c_char, c_int, c_int64_t, c_signed_char, insitu_device
      type(c_ptr), value :: ctx, data
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int), value :: ndim, bits, writable
      integer(c_int64_t), intent(in) :: shape(*), strides(*)
      integer(c_signed_char), value :: code ! a char: some compilers pass the address of a character variable
      type(insitu_device), value :: device
    end function
    integer(c_int) function c_mesh(ctx, mesh) bind(c, name='insitu_mesh')
      import :: c_ptr, c_int, mesh_info
      type(c_ptr), value :: ctx
      type(mesh_info), intent(in) :: mesh
    end function
    integer(c_int) function c_step(ctx, step, time) bind(c, name='insitu_step')
      import :: c_ptr, c_int, c_int64_t, c_double
      type(c_ptr), value :: ctx
      integer(c_int64_t), value :: step
      real(c_double), value :: time
    end function
    integer(c_int) function c_checkpoint(ctx, path) bind(c, name='insitu_checkpoint')
      import :: c_ptr, c_int, c_char
      type(c_ptr), value :: ctx
      character(kind=c_char), intent(in) :: path(*)
    end function
    integer(c_int) function c_restore(ctx, path) bind(c, name='insitu_restore')
      import :: c_ptr, c_int, c_char
      type(c_ptr), value :: ctx
      character(kind=c_char), intent(in) :: path(*)
    end function
    ! Finishes the analyses; with MPI, call it on all ranks and before MPI_Finalize
    integer(c_int) function insitu_finalize(ctx) bind(c, name='insitu_finalize')
      import :: c_ptr, c_int
      type(c_ptr), value :: ctx
    end function
    type(c_ptr) function c_error(ctx) bind(c, name='insitu_error')
      import :: c_ptr
      type(c_ptr), value :: ctx
    end function
    type(c_ptr) function c_version() bind(c, name='insitu_version')
      import :: c_ptr
    end function
    integer(c_size_t) function c_length(text) bind(c, name='strlen')
      import :: c_ptr, c_size_t
      type(c_ptr), value :: text
    end function
  end interface

  ! status = insitu_field(ctx, name, array [, device] [, writable])
  interface insitu_field
    module procedure field_r4, field_r8, field_i4, field_i8, field_c4, field_c8
  end interface

  ! status = insitu_step(ctx, step, time); step is a 32-bit or a 64-bit integer
  interface insitu_step
    module procedure step_i4, step_i8
  end interface

contains

  ! comm: the handle of an MPI communicator (with mpi_f08: comm%MPI_VAL)
  type(c_ptr) function insitu_init(script, options, comm)
    character(*), intent(in) :: script
    character(*), intent(in), optional :: options
    integer, intent(in), optional :: comm
    integer(c_int64_t) :: handle
    handle = -1
    if (present(comm)) handle = comm
    if (present(options)) then
      insitu_init = c_init(trim(script)//c_null_char, trim(options)//c_null_char, handle)
    else
      insitu_init = c_init(trim(script)//c_null_char, '{}'//c_null_char, handle)
    end if
  end function

  integer(c_int) function step_i4(ctx, step, time)
    type(c_ptr), intent(in) :: ctx
    integer(int32), intent(in) :: step
    real(c_double), intent(in) :: time
    step_i4 = c_step(ctx, int(step, c_int64_t), time)
  end function

  integer(c_int) function step_i8(ctx, step, time)
    type(c_ptr), intent(in) :: ctx
    integer(int64), intent(in) :: step
    real(c_double), intent(in) :: time
    step_i8 = c_step(ctx, step, time)
  end function

  integer(c_int) function insitu_checkpoint(ctx, path)
    type(c_ptr), intent(in) :: ctx
    character(*), intent(in) :: path
    insitu_checkpoint = c_checkpoint(ctx, trim(path)//c_null_char)
  end function

  integer(c_int) function insitu_restore(ctx, path)
    type(c_ptr), intent(in) :: ctx
    character(*), intent(in) :: path
    insitu_restore = c_restore(ctx, trim(path)//c_null_char)
  end function

  function insitu_error(ctx) result(text)
    type(c_ptr), intent(in) :: ctx
    character(:), allocatable :: text
    text = text_of(c_error(ctx))
  end function

  function insitu_version() result(text)
    character(:), allocatable :: text
    text = text_of(c_version())
  end function

  function text_of(source) result(text)
    type(c_ptr), intent(in) :: source
    character(:), allocatable :: text
    character(kind=c_char), pointer :: letters(:)
    integer(c_size_t) :: i, length
    length = c_length(source)
    call c_f_pointer(source, letters, [length])
    allocate (character(length) :: text)
    do i = 1, length
      text(i:i) = letters(i)
    end do
  end function

  ! Each array has one number per dimension of the field. offset counts from 0. weights has the field's shape and is copied.
  integer(c_int) function insitu_mesh(ctx, global_shape, offset, spacing, origin, weights)
    type(c_ptr), intent(in) :: ctx
    integer, intent(in), optional :: global_shape(:), offset(:)
    real(real64), intent(in), optional :: spacing(:), origin(:)
    real(real64), intent(in), optional, target, contiguous :: weights(..)
    integer(c_int64_t), target :: wide(15, 4)
    integer(c_int64_t) :: stride
    real(real64), target :: real_wide(15, 2)
    type(array_info), target :: array
    type(mesh_info) :: mesh
    integer :: i
    if (present(global_shape)) then
      mesh%ndim = size(global_shape)
      wide(:mesh%ndim, 1) = global_shape
      mesh%global_shape = c_loc(wide(1, 1))
    end if
    if (present(offset)) then
      mesh%ndim = size(offset)
      wide(:mesh%ndim, 2) = offset
      mesh%offset = c_loc(wide(1, 2))
    end if
    if (present(spacing)) then
      mesh%ndim = size(spacing)
      real_wide(:mesh%ndim, 1) = spacing
      mesh%spacing = c_loc(real_wide(1, 1))
    end if
    if (present(origin)) then
      mesh%ndim = size(origin)
      real_wide(:mesh%ndim, 2) = origin
      mesh%origin = c_loc(real_wide(1, 2))
    end if
    if (present(weights)) then
      array%ndim = rank(weights)
      stride = 1
      do i = 1, rank(weights)
        wide(i, 3) = size(weights, i, c_int64_t)
        wide(i, 4) = stride
        stride = stride*wide(i, 3)
      end do
      array%data = c_loc(weights)
      array%shape = c_loc(wide(1, 3))
      array%strides = c_loc(wide(1, 4))
      mesh%weights = c_loc(array)
    end if
    insitu_mesh = c_mesh(ctx, mesh)
  end function

  ! The address of an element as an integer
  integer(c_intptr_t) function address(element)
    type(*), intent(in), target :: element
    address = transfer(c_loc(element), 0_c_intptr_t)
  end function

  ! extent: size of each dimension; apart: bytes between neighbours along it (0: the array is contiguous)
  integer(c_int) function send(ctx, name, data, extent, apart, code, bits, device, writable)
    type(c_ptr), intent(in) :: ctx, data
    character(*), intent(in) :: name
    integer(c_int64_t), intent(in) :: extent(:), apart(:)
    character, intent(in) :: code
    integer, intent(in) :: bits
    type(insitu_device), intent(in), optional :: device
    logical, intent(in), optional :: writable
    type(insitu_device) :: place
    integer(c_int64_t) :: packed, strides(15)
    integer(c_int) :: may_write
    integer :: i
    packed = 1
    do i = 1, size(extent)
      strides(i) = packed
      if (apart(i) /= 0) strides(i) = apart(i)/(bits/8)
      packed = packed*extent(i)
    end do
    if (present(device)) place = device
    may_write = 0
    if (present(writable)) may_write = merge(1, 0, writable)
    send = c_field(ctx, trim(name)//c_null_char, data, size(extent), extent, strides, int(iachar(code), c_signed_char), bits, &
                   place, may_write)
  end function

  function field_r4(ctx, name, a, device, writable) result(status)
    real(real32), intent(in), target :: a(..)
    character, parameter :: code = 'f'
    include 'lapwing_insitu_field.inc'
  end function

  function field_r8(ctx, name, a, device, writable) result(status)
    real(real64), intent(in), target :: a(..)
    character, parameter :: code = 'f'
    include 'lapwing_insitu_field.inc'
  end function

  function field_i4(ctx, name, a, device, writable) result(status)
    integer(int32), intent(in), target :: a(..)
    character, parameter :: code = 'i'
    include 'lapwing_insitu_field.inc'
  end function

  function field_i8(ctx, name, a, device, writable) result(status)
    integer(int64), intent(in), target :: a(..)
    character, parameter :: code = 'i'
    include 'lapwing_insitu_field.inc'
  end function

  function field_c4(ctx, name, a, device, writable) result(status)
    complex(real32), intent(in), target :: a(..)
    character, parameter :: code = 'c'
    include 'lapwing_insitu_field.inc'
  end function

  function field_c8(ctx, name, a, device, writable) result(status)
    complex(real64), intent(in), target :: a(..)
    character, parameter :: code = 'c'
    include 'lapwing_insitu_field.inc'
  end function

end module
