// Takes from this process, with all its threads and for good, everything but computing and its open pipes: a seccomp
// filter of Linux that allows a list of system calls. No file can be opened, no socket made, no program started.
import koffi from 'koffi'

/** System calls that V8 and Node need once everything is loaded: x64, then arm64. */
const allowed: Record<string, readonly [number, number]> = {
  read: [0, 63],
  write: [1, 64],
  close: [3, 57],
  fstat: [5, 80],
  poll: [7, 73],
  lseek: [8, 62],
  mmap: [9, 222],
  mprotect: [10, 226],
  munmap: [11, 215],
  brk: [12, 214],
  rt_sigaction: [13, 134],
  rt_sigprocmask: [14, 135],
  rt_sigreturn: [15, 139],
  readv: [19, 65],
  writev: [20, 66],
  sched_yield: [24, 124],
  mremap: [25, 216],
  madvise: [28, 233],
  nanosleep: [35, 101],
  getpid: [39, 172],
  exit: [60, 93],
  gettimeofday: [96, 169],
  getrusage: [98, 165],
  sysinfo: [99, 179],
  sigaltstack: [131, 132],
  sched_getparam: [143, 121],
  sched_getscheduler: [145, 120],
  gettid: [186, 178],
  futex: [202, 98],
  sched_getaffinity: [204, 123],
  restart_syscall: [219, 128],
  clock_gettime: [228, 113],
  clock_getres: [229, 114],
  clock_nanosleep: [230, 115],
  exit_group: [231, 94],
  epoll_wait: [232, 22],
  epoll_ctl: [233, 21],
  set_robust_list: [273, 99],
  epoll_pwait: [281, 22],
  eventfd2: [290, 19],
  getrandom: [318, 278],
  membarrier: [324, 283],
  pkey_mprotect: [329, 288],
  pkey_alloc: [330, 289],
  pkey_free: [331, 290],
  rseq: [334, 293],
}
/** Allowed with conditions: threads alone, and signals to this process. */
const clone = [56, 220] as const
const clone3 = 435
const kill = [62, 129] as const
const tgkill = [234, 131] as const

const archs = { x64: [0xc000003e, 0], arm64: [0xc00000b7, 1] } as const

// linux/filter.h and linux/seccomp.h
const load = 0x20
const jumpEqual = 0x15
const jumpSet = 0x45
const answer = 0x06
const [offsetNumber, offsetArch, offsetArg0] = [0, 4, 16]
const permit = 0x7fff0000
const refuse = (errno: number) => 0x00050000 | errno
const killProcess = 0x80000000
const [eperm, enosys] = [1, 38]
const threadFlag = 0x00010000
const prSetNoNewPrivs = 38
const modeFilter = 1
const onAllThreads = 1
const seccompNumber = { x64: 317, arm64: 277 } as const

type Instruction = [code: number, ifTrue: number, ifFalse: number, value: number]

/** The program of the filter, for the process with this id. */
function programFor(arch: keyof typeof archs, pid: number): Instruction[] {
  const [audit, column] = archs[arch]
  /** `value` is compared; on a match the next `count` instructions run, else they are skipped. */
  const when = (value: number, instructions: Instruction[]): Instruction[] => [
    [jumpEqual, 0, instructions.length, value],
    ...instructions,
  ]
  const toSelf: Instruction[] = [
    [load, 0, 0, offsetArg0],
    [jumpEqual, 0, 1, pid],
    [answer, 0, 0, permit],
    [answer, 0, 0, refuse(eperm)],
  ]
  return [
    [load, 0, 0, offsetArch],
    [jumpEqual, 1, 0, audit],
    [answer, 0, 0, killProcess],
    [load, 0, 0, offsetNumber],
    ...Object.values(allowed).flatMap((numbers) => when(numbers[column], [[answer, 0, 0, permit]])),
    // Its flags lie in memory, where a filter cannot look: the C library then uses clone.
    ...when(clone3, [[answer, 0, 0, refuse(enosys)]]),
    ...when(clone[column], [
      [load, 0, 0, offsetArg0],
      [jumpSet, 0, 1, threadFlag],
      [answer, 0, 0, permit],
      [answer, 0, 0, refuse(eperm)],
    ]),
    ...when(kill[column], toSelf),
    ...when(tgkill[column], toSelf),
    [answer, 0, 0, refuse(eperm)],
  ]
}

/** Seals the process. Throws if the kernel has no seccomp, or the machine is another than x64 or arm64. */
export function seal(): void {
  const { arch, pid } = process
  if (process.platform !== 'linux' || !(arch === 'x64' || arch === 'arm64'))
    throw new Error('the sandbox needs Linux on x64 or arm64')
  const program = programFor(arch, pid)
  const filter = koffi.alloc('uint8_t', 8 * program.length)
  const bytes = new DataView(koffi.view(filter, 8 * program.length))
  for (const [index, [code, ifTrue, ifFalse, value]] of program.entries()) {
    bytes.setUint16(8 * index, code, true)
    bytes.setUint8(8 * index + 2, ifTrue)
    bytes.setUint8(8 * index + 3, ifFalse)
    bytes.setUint32(8 * index + 4, value, true)
  }
  const header = Buffer.alloc(16)
  header.writeUInt16LE(program.length, 0)
  header.writeBigUInt64LE(koffi.address(filter), 8)
  const libc = koffi.load(null)
  const prctl = libc.func('int prctl(int option, ulong a, ulong b, ulong c, ulong d)')
  const syscall = libc.func('long syscall(long number, ulong mode, ulong flags, void* program)')
  if (prctl(prSetNoNewPrivs, 1, 0, 0, 0) !== 0 || syscall(seccompNumber[arch], modeFilter, onAllThreads, header) !== 0)
    throw new Error(`the kernel refuses a seccomp filter (errno ${koffi.errno()})`)
}
