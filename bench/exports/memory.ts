// How much memory the processes take that a process has started, theirs included: the sum of what is resident at one
// time, or the most of any one of them where that is more, as the kernel misses no peak of one.
import { readdirSync, readFileSync } from 'node:fs'

const sample_ms = 100

function read(file: string): string {
  try {
    return readFileSync(file, 'utf8')
  } catch {
    // It has ended.
    return ''
  }
}

/** Processes below this one. */
function below(pid: number): number[] {
  const children = new Map<number, number[]>()
  for (const name of readdirSync('/proc')) {
    if (!/^\d+$/.test(name)) continue
    // The name of a program may hold spaces and brackets; what follows its last bracket is the state and the parent.
    const parent = Number(/.*\) \S (\d+)/s.exec(read(`/proc/${name}/stat`))?.[1])
    if (parent) children.set(parent, [...(children.get(parent) ?? []), Number(name)])
  }
  const found: number[] = []
  for (let next = children.get(pid) ?? []; next.length > 0; next = next.flatMap((each) => children.get(each) ?? []))
    found.push(...next)
  return found
}

/** Watches what is started below a process from now on. */
export function watchMemory(pid: number) {
  const there = new Set(below(pid))
  let peak_bytes = 0
  const look = () => {
    let sum = 0
    for (const each of below(pid)) {
      if (there.has(each)) continue
      const status = read(`/proc/${each}/status`)
      const bytes = (name: string) => 1024 * Number(new RegExp(`^${name}:\\s+(\\d+)`, 'm').exec(status)?.[1] ?? 0)
      sum += bytes('VmRSS')
      peak_bytes = Math.max(peak_bytes, bytes('VmHWM'))
    }
    peak_bytes = Math.max(peak_bytes, sum)
  }
  const timer = setInterval(look, sample_ms)
  return {
    /** Ends it, and returns the most that they had. */
    end(): number {
      look()
      clearInterval(timer)
      return peak_bytes
    },
  }
}
