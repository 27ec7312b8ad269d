// CPU time of a worker's thread. Time limits on what clients send count it: on a busy machine a thread may wait seconds
// for a core to do the work of milliseconds, and that is no fault of the client's.
import { readFileSync, readlinkSync } from 'node:fs'

/** The kernel's id of the calling thread; 0 where it tells none. */
export function threadId(): number {
  try {
    return Number(readlinkSync('/proc/thread-self').split('/').at(-1))
  } catch {
    return 0
  }
}

/** Milliseconds that this thread of the process has been on a core; undefined where the kernel does not tell. */
export function threadTime(id: number): number | undefined {
  try {
    return id === 0 ? undefined : Number(readFileSync(`/proc/self/task/${id}/schedstat`, 'latin1').split(' ')[0]) / 1e6
  } catch {
    return undefined
  }
}

/** The same of the calling thread. */
export function ownTime(): number {
  const { user, system } = process.threadCpuUsage()
  return (user + system) / 1000
}
