import { availableParallelism, loadavg } from 'node:os'

/**
 * How long something may take that takes at most `limit_ms` on a machine that does nothing else: longer where more
 * programs want to run than there are cores, or where this process gets only a part of one.
 */
export function allowed(limit_ms: number): number {
  const from = performance.now()
  const used = process.cpuUsage()
  while (performance.now() - from < spin_ms);
  const { user, system } = process.cpuUsage(used)
  const got = Math.max(0.05, (user + system) / 1000 / (performance.now() - from))
  return limit_ms * Math.max(1, 1 / got, loadavg()[0]! / availableParallelism())
}
const spin_ms = 10
