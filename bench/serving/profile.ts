// Where the time of a process goes: its processor time and context switches, and what V8's profiler saw of its main thread.
import { readdirSync, readFileSync } from 'node:fs'
import path from 'node:path'

/** Sums over all threads of a process. */
export interface ProcessTimes {
  cpu_ms: number
  switches: number
}

const clockTicksPerSecond = 100

export function timesOf(pid: number): ProcessTimes {
  const times = { cpu_ms: 0, switches: 0 }
  for (const thread of readdirSync(`/proc/${pid}/task`)) {
    // Fields 14 and 15, counted from behind the name, which may have spaces.
    const stat = readFileSync(`/proc/${pid}/task/${thread}/stat`, 'utf8')
    const fields = stat.slice(stat.lastIndexOf(') ') + 2).split(' ')
    times.cpu_ms += ((Number(fields[11]) + Number(fields[12])) * 1000) / clockTicksPerSecond
    for (const [, count] of readFileSync(`/proc/${pid}/task/${thread}/status`, 'utf8').matchAll(/_switches:\s+(\d+)/g))
      times.switches += Number(count)
  }
  return times
}

export const difference = (from: ProcessTimes, to: ProcessTimes): ProcessTimes => ({
  cpu_ms: to.cpu_ms - from.cpu_ms,
  switches: to.switches - from.switches,
})

/** The child of a process that runs this program. */
export function childOf(pid: number, program: string): number {
  const children = readdirSync(`/proc/${pid}/task`).flatMap((thread) =>
    readFileSync(`/proc/${pid}/task/${thread}/children`, 'utf8').trim().split(' '),
  )
  const found = children.find((child) => child && readFileSync(`/proc/${child}/cmdline`, 'utf8').includes(program))
  if (!found) throw new Error(`process ${pid} has no child that runs ${program}`)
  return Number(found)
}

/** Microseconds on the clock of V8's profiles. */
export const profileClock_us = () => Number(process.hrtime.bigint() / 1000n)

interface Frame {
  functionName: string
  url: string
}
interface Profile {
  nodes: { id: number; callFrame: Frame; children?: number[] }[]
  startTime: number
  samples: number[]
  timeDeltas: number[]
}

/** The profile in a folder of the thread that ran this source file. */
export function readProfile(folder: string, source: string): Profile {
  for (const file of readdirSync(folder)) {
    const profile = JSON.parse(readFileSync(path.join(folder, file), 'utf8')) as Profile
    if (profile.nodes.some(({ callFrame }) => callFrame.url.endsWith(source))) return profile
  }
  throw new Error(`no profile in ${folder} has seen ${source}`)
}

/**
 * Milliseconds between two times by category: that of the innermost frame which `categoryOf` names, else `other`. The
 * profiler writes its own frames as `(idle)`, `(garbage collector)` and `(program)`, which is native code.
 */
export function profiledTimes<C extends string>(
  profile: Profile,
  from_us: number,
  to_us: number,
  categoryOf: (frame: Frame) => C | undefined,
): Record<C | 'other', number> {
  const categories = new Map<number, C | 'other'>()
  const byId = new Map(profile.nodes.map((node) => [node.id, node]))
  const visit = (id: number, outer: C | 'other') => {
    const { callFrame, children = [] } = byId.get(id)!
    const category = categoryOf(callFrame) ?? outer
    categories.set(id, category)
    for (const child of children) visit(child, category)
  }
  visit(profile.nodes[0]!.id, 'other')
  const times = { other: 0 } as Record<C | 'other', number>
  let at = profile.startTime
  profile.samples.forEach((id, index) => {
    const delta = profile.timeDeltas[index]!
    at += delta
    if (at < from_us || at > to_us) return
    const category = categories.get(id)!
    times[category] = (times[category] ?? 0) + delta / 1000
  })
  return times
}
