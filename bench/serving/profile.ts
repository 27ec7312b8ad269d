// Where the time of a process goes: its processor time and context switches, and what V8's profiler saw of its main
// thread.
import { readdirSync, readFileSync } from 'node:fs'

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
  const match = children.find((child) => child && readFileSync(`/proc/${child}/cmdline`, 'utf8').includes(program))
  if (!match) throw new Error(`process ${pid} has no child that runs ${program}`)
  return Number(match)
}

interface Frame {
  functionName: string
  url: string
}
export interface Profile {
  nodes: { id: number; callFrame: Frame; children?: number[] }[]
  samples: number[]
  timeDeltas: number[]
}

const inspectorPort = 9229
const inspectorWait_ms = 10_000

/**
 * Profiles the main thread of a Node process, through the inspector that it opens on SIGUSR1. Nothing else of the
 * process is slowed. Throws if another process has the inspector's port.
 */
export async function attachProfiler(pid: number, interval_us: number) {
  process.kill(pid, 'SIGUSR1')
  const target = await inspectorTarget(performance.now() + inspectorWait_ms)
  const socket = new WebSocket(target)
  await new Promise((resolve, reject) => {
    socket.onopen = resolve
    socket.onerror = () => reject(new Error('the inspector of the process cannot be reached'))
  })
  let last = 0
  const waiting = new Map<number, (result: unknown) => void>()
  socket.onmessage = ({ data }) => {
    const { id, result } = JSON.parse(String(data))
    waiting.get(id)?.(result)
    waiting.delete(id)
  }
  const call = (method: string, params = {}) =>
    new Promise<unknown>((resolve) => {
      waiting.set(++last, resolve)
      socket.send(JSON.stringify({ id: last, method, params }))
    })
  await call('Profiler.enable')
  await call('Profiler.setSamplingInterval', { interval: interval_us })
  return {
    start: () => call('Profiler.start'),
    stop: async () => ((await call('Profiler.stop')) as { profile: Profile }).profile,
    close: () => socket.close(),
  }
}

async function inspectorTarget(until_ms: number): Promise<string> {
  for (;;) {
    try {
      const [target] = await (await fetch(`http://127.0.0.1:${inspectorPort}/json/list`)).json()
      return target.webSocketDebuggerUrl
    } catch (error) {
      if (performance.now() > until_ms) throw new Error('the process opens no inspector', { cause: error })
      await new Promise((resolve) => setTimeout(resolve, 50))
    }
  }
}

/**
 * Milliseconds of a profile by category: that of the innermost frame which `categoryOf` names, else `other`. The
 * profiler writes its own frames as `(idle)`, `(garbage collector)` and `(program)`, which is native code.
 */
export function profiledTimes<C extends string>(
  profile: Profile,
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
  profile.samples.forEach((id, index) => {
    const category = categories.get(id)!
    times[category] = (times[category] ?? 0) + profile.timeDeltas[index]! / 1000
  })
  return times
}
