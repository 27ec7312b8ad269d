// Memory of processes. Of descendants the peak: the largest sum of resident memory at one sample, or the kernel's own
// peak of one process (VmHWM) if that is larger.
import { readdirSync, readFileSync } from 'node:fs'

const sample_ms = 100

function read(file: string): string {
  try {
    return readFileSync(file, 'utf8')
  } catch {
    // The process has ended.
    return ''
  }
}

/** All descendants of a process. */
export function descendants(pid: number): number[] {
  const children = new Map<number, number[]>()
  for (const name of readdirSync('/proc')) {
    if (!/^\d+$/.test(name)) continue
    // A program name may contain spaces and brackets; state and parent follow the last bracket.
    const parent = Number(/.*\) \S (\d+)/s.exec(read(`/proc/${name}/stat`))?.[1])
    if (parent) children.set(parent, [...(children.get(parent) ?? []), Number(name)])
  }
  const pids: number[] = []
  for (let next = children.get(pid) ?? []; next.length > 0; next = next.flatMap((pid) => children.get(pid) ?? []))
    pids.push(...next)
  return pids
}

const field = (pid: number | string, name: string) =>
  1024 * Number(new RegExp(`^${name}:\\s+(\\d+)`, 'm').exec(read(`/proc/${pid}/status`))?.[1] ?? 0)

/** Resident memory in MB; 0 for a process that has ended. */
export const residentMb = (pid: number) => field(pid, 'VmRSS') / 1e6

/** The engine that a server has started. */
export function engineOf(server: number): number {
  const engine = descendants(server).find((pid) => read(`/proc/${pid}/cmdline`).includes('engine/main.ts'))
  if (engine === undefined) throw new Error('the service has no engine')
  return engine
}

/** The most resident memory of a process until `end`, in MB. */
export function watchResident(pid: number) {
  let peak = residentMb(pid)
  const timer = setInterval(() => {
    peak = Math.max(peak, residentMb(pid))
  }, 20)
  return {
    end(): number {
      clearInterval(timer)
      return Math.max(peak, residentMb(pid))
    },
  }
}

/** Measures descendants of a process that start from now on. */
export function watchMemory(pid: number) {
  const existing = new Set(descendants(pid))
  let peak_bytes = 0
  const sample = () => {
    let sum = 0
    for (const descendant of descendants(pid)) {
      if (existing.has(descendant)) continue
      sum += field(descendant, 'VmRSS')
      peak_bytes = Math.max(peak_bytes, field(descendant, 'VmHWM'))
    }
    peak_bytes = Math.max(peak_bytes, sum)
  }
  const timer = setInterval(sample, sample_ms)
  return {
    /** Stops, and returns the peak in bytes. */
    end(): number {
      sample()
      clearInterval(timer)
      return peak_bytes
    },
  }
}
