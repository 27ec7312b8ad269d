import { readdirSync, readFileSync } from 'node:fs'

/** Processor seconds by process id. */
export type ProcessorSeconds = ReadonlyMap<number, number>

/** Processor time of a process and its children. An ended child counts for the process that waited for it. */
export function processorSeconds(root: number): ProcessorSeconds {
  const seconds = new Map<number, number>()
  const read = (pid: number) => {
    try {
      // Behind the program's name, which may have spaces: the times of itself and of ended children, in ticks of 10 ms.
      const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ').at(-1)!.split(' ')
      seconds.set(pid, fields.slice(11, 15).reduce((sum, ticks) => sum + Number(ticks), 0) / 100)
      for (const thread of readdirSync(`/proc/${pid}/task`))
        for (const child of readFileSync(`/proc/${pid}/task/${thread}/children`, 'utf8').split(' '))
          if (child.trim()) read(Number(child))
    } catch {
      // It has ended.
    }
  }
  read(root)
  return seconds
}

/** Between two readings; with `known`, without processes that started in between. */
export function secondsBetween(before: ProcessorSeconds, after: ProcessorSeconds, { known = false } = {}): number {
  const total = (all: Iterable<number>) => [...all].reduce((sum, amount) => sum + amount, 0)
  const counted = [...after].filter(([pid]) => !known || before.has(pid)).map(([, seconds]) => seconds)
  return total(counted) - total(before.values())
}
