! burgers.cpp in Fortran: burgers_fortran [script]
program burgers
  use, intrinsic :: iso_fortran_env, only: int64, real64
  use lapwing_insitu
  implicit none
  integer, parameter :: nx = 256
  real(real64), parameter :: pi = 3.1415926535_real64, h = 2*pi/nx, dt = 0.001_real64, end = 2, nu = 0.01_real64
  real(real64), parameter :: c1 = dt/(2*h), c2 = dt*nu/(h*h)
  real(real64), target :: u(0:nx + 1), next(0:nx + 1)
  type(c_ptr) :: run
  real(real64) :: t
  integer(int64) :: n
  integer :: i, status
  logical :: stop_asked
  character(1024) :: script

  script = 'burgers_analysis.py'
  if (command_argument_count() > 0) call get_command_argument(1, script)
  do i = 1, nx
    u(i) = sin(2.0_real64*(i - 1)*pi/nx)
  end do
  u(0) = u(nx)
  u(nx + 1) = u(1)

  run = insitu_init(script)
  status = insitu_mesh(run, global_shape=[nx], spacing=[h])
  t = 0
  n = 0
  do
    do i = 1, nx
      next(i) = u(i) + c2*(u(i + 1) - 2*u(i) + u(i - 1)) - u(i)*c1*(u(i + 1) - u(i - 1))
    end do
    next(0) = u(nx) ! the ghost points are one step late, as in the original
    next(nx + 1) = u(1)
    u = next
    t = t + dt
    status = insitu_field(run, 'u', u(1:nx)) ! without the ghost points
    stop_asked = insitu_step(run, n, t) == INSITU_STOP
    n = n + 1
    if (t >= end .or. stop_asked) exit
  end do
  print '(i0, a, f18.16)', n, ' steps, t = ', t
  print '(a, f9.7)', 'A random value in the solution array: ', u(10)
  flush (6)
  status = insitu_finalize(run)
end program
