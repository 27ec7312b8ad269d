// Peak memory of a process's descendants: the largest sum of resident memory at one sample, or the kernel's own peak of
// one process (VmHWM) if that is larger.
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
function descendants(pid: number): number[] {
  const children = new Map<number, number[]>()
  for (const name of readdirSync('/proc')) {
    if (!/^\d+$/.test(name)) continue
    // A program name may contain spaces and brackets; state and parent follow the last bracket.
    const parent = Number(/.*\) \S (\d+)/s.exec(read(`/proc/${name}/stat`))?.[1])
    if (parent) children.set(parent, [...(children.get(parent) ?? []), Number(name)])
  }
  const found: number[] = []
  for (let next = children.get(pid) ?? []; next.length > 0; next = next.flatMap((each) => children.get(each) ?? []))
    found.push(...next)
  return found
}

/** Measures descendants of a process that start from now on. */
export function watchMemory(pid: number) {
  const existing = new Set(descendants(pid))
  let peak_bytes = 0
  const sample = () => {
    let sum = 0
    for (const each of descendants(pid)) {
      if (existing.has(each)) continue
      const status = read(`/proc/${each}/status`)
      const bytes = (name: string) => 1024 * Number(new RegExp(`^${name}:\\s+(\\d+)`, 'm').exec(status)?.[1] ?? 0)
      sum += bytes('VmRSS')
      peak_bytes = Math.max(peak_bytes, bytes('VmHWM'))
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
