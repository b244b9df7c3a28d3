! Arrays of several types, ranks and sections; ends when Python asks for it.
program strides
  use, intrinsic :: iso_fortran_env
  use lapwing_insitu
  implicit none
  type(c_ptr) :: run
  real(real64), target :: u(4, 3), w(4, 3)
  real(real32), target :: s(5), five(2, 1, 2, 1, 2)
  complex(real32), target :: c(2)
  complex(real64), target :: z(2, 2, 2)
  integer(int32), target :: k(2, 3, 2, 2)
  integer(int64), target :: big(3)
  real(real64), target :: none(0)
  character(256) :: script
  integer :: i, j, n, status

  call get_command_argument(1, script)
  do j = 1, 3
    do i = 1, 4
      u(i, j) = 10*i + j
    end do
  end do
  w = 2
  s = [1, 2, 3, 4, 5]
  five = 5
  c = [(1.0, 2.0), (3.0, 4.0)]
  z = (5.0d0, 6.0d0)
  k = 7
  k(2, :, 1, 1) = [1, 2, 3]
  big = 2_int64**40
  run = insitu_init(script, '{"quiet": true}')
  status = insitu_mesh(run, global_shape=[8, 3], offset=[4, 0], spacing=[0.1d0, 0.2d0], origin=[0d0, 1d0], weights=w)
  do n = 0, 9
    status = insitu_field(run, 'u', u)
    status = insitu_field(run, 'section', u(1:4:2, 2:3))
    status = insitu_field(run, 'backwards', s(5:1:-2), writable=.true.)
    status = insitu_field(run, 'c', c)
    status = insitu_field(run, 'z', z)
    status = insitu_field(run, 'k', k(2, :, :, :))
    status = insitu_field(run, 'big', big)
    status = insitu_field(run, 'five', five)
    status = insitu_field(run, 'none', none)
    if (insitu_step(run, n, 0.5d0*n) == INSITU_STOP) exit
  end do
  print '(a, i0)', 'stopped at ', n
  print '(a, f4.1)', 's(3) is ', s(3)
  print '(a)', 'version '//insitu_version()
  print '(a)', 'error <'//insitu_error(run)//'>'
  flush (6)
  status = insitu_finalize(run)
  print '(a, i0)', 'finalize ', status
end program
