// What the kernel says of the time of threads and cores.
import { openSync, readFileSync, readSync } from 'node:fs'
import { allowedCores } from '../../lib/usable-cores.ts'

export interface CoreTimes {
  /** How long a step's threads, `count` together, were on a core, and ready to run without one. */
  threads(count: number): { used_ms: number; waited_ms: number }
  /**
   * How long the cores that this process may use were idle, or had programs of a lower priority than the normal one.
   */
  cores(): { idle_ms: number; nice_ms: number }
}

/** One tick of /proc/stat, on every Linux that Node runs on. */
const tick_ms = 10

/**
 * `idsOf`: the kernel's ids of the threads that compute a step with so many. Null where the kernel does not tell the
 * times of `most`.
 */
export function readCoreTimes(idsOf: (count: number) => readonly number[], most: number): CoreTimes | null {
  const files = new Map<number, number>()
  /** Open for the life of the process, as the threads are. */
  const fileOf = (id: number): number => {
    const file = files.get(id) ?? openSync(`/proc/self/task/${id}/schedstat`, 'r')
    files.set(id, file)
    return file
  }
  try {
    if (idsOf(most).map(fileOf).length !== most) return null
  } catch {
    return null
  }
  const buffer = Buffer.alloc(128)
  return {
    threads(count) {
      let used = 0
      let waited = 0
      for (const id of idsOf(count)) {
        // Nanoseconds on a core, nanoseconds in the run queue, time slices.
        const [on, waiting] = buffer.toString('latin1', 0, readSync(fileOf(id), buffer, 0, buffer.length, 0)).split(' ')
        used += Number(on)
        waited += Number(waiting)
      }
      return { used_ms: used / 1e6, waited_ms: waited / 1e6 }
    },
    cores() {
      const allowed = new Set(allowedCores())
      let idle = 0
      let nice = 0
      for (const line of readFileSync('/proc/stat', 'latin1').split('\n')) {
        // Not the first line, which is the sum.
        if (!/^cpu\d/.test(line)) continue
        // cpuN USER NICE SYSTEM IDLE IOWAIT …
        const [name, , niceTicks, , idleTicks, waitTicks] = line.split(' ')
        if (!allowed.has(Number(name!.slice(3)))) continue
        idle += Number(idleTicks) + Number(waitTicks)
        nice += Number(niceTicks)
      }
      return { idle_ms: idle * tick_ms, nice_ms: nice * tick_ms }
    },
  }
}
