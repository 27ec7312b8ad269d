// A benchmark that fails must leave nothing running.
import type { ChildProcess } from 'node:child_process'

const running = new Set<ChildProcess>()
process.once('exit', () => {
  for (const child of running) child.kill('SIGKILL')
})

/** Kills a child with this process, if it has not ended by then. */
export function endWithThisProcess(child: ChildProcess): void {
  running.add(child)
  child.once('exit', () => running.delete(child))
}
