// How much processor time a process and those that it started got and waited for, by what the kernel says of their threads.
import { readdirSync, readFileSync } from 'node:fs'

/** Of each thread: nanoseconds on a core, and nanoseconds of waiting for one although it could have run. */
export type Times = Map<string, [used: number, waited: number]>
export type Pace = { used_ms: number; waited_ms: number }

/** Empty where the process has ended, or the kernel does not say. */
export function timesOf(pid: number): Times {
  const times: Times = new Map()
  const read = (process: number) => {
    for (const thread of list(`/proc/${process}/task`)) {
      const [used, waited] = text(`/proc/${process}/task/${thread}/schedstat`).split(' ').map(Number)
      if (waited !== undefined) times.set(thread, [used!, waited])
      for (const child of text(`/proc/${process}/task/${thread}/children`).split(' ')) if (child) read(Number(child))
    }
  }
  read(pid)
  return times
}

/** What was added from one look to the next; of threads that ended in between nothing is known. */
export function readPace(before: Times, after: Times): Pace {
  let used = 0
  let waited = 0
  for (const [thread, [used_now, waited_now]] of after) {
    const [used_then, waited_then] = before.get(thread) ?? [0, 0]
    used += used_now - used_then
    waited += waited_now - waited_then
  }
  return { used_ms: used / 1e6, waited_ms: waited / 1e6 }
}

const list = (folder: string) => attempt(() => readdirSync(folder), [])
const text = (file: string) => attempt(() => readFileSync(file, 'utf8'), '').trim()

function attempt<T>(read: () => T, otherwise: T): T {
  try {
    return read()
  } catch {
    return otherwise
  }
}
