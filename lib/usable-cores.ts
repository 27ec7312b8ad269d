// Cores that this process may use: those of its CPU affinity, within the CPU quotas of its control groups (version 1
// and 2), which containers set.
import { readFileSync } from 'node:fs'
import { availableParallelism } from 'node:os'
import path from 'node:path'

/**
 * At least 1. A quota counts as its whole cores: with one thread more, all of them would stop in each period, and with
 * them whatever else runs in the container.
 */
export function usableCores(): number {
  return Math.max(1, Math.min(availableParallelism(), Math.floor(cpuQuota())))
}

/** The cores of this process's CPU affinity, by the kernel's numbers. */
export function allowedCores(): number[] {
  const list = /^Cpus_allowed_list:\s*(\S+)$/m.exec(text('/proc/self/status'))?.[1]
  // Not Linux.
  if (!list) return Array.from({ length: availableParallelism() }, (_, core) => core)
  return parseRanges(list)
}

/** `0-2,5` is [0, 1, 2, 5]. */
export const parseRanges = (list: string): number[] =>
  list.split(',').flatMap((part) => {
    const [first, last = first] = part.split('-').map(Number) as [number, number?]
    return Array.from({ length: last - first + 1 }, (_, index) => first + index)
  })

/** The smallest CPU quota of this process's control groups and their parents, in cores; Infinity: none. */
export function cpuQuota(root = '/'): number {
  const groups = lines(path.join(root, 'proc/self/cgroup')).map((line) => line.split(':'))
  return Math.min(
    ...lines(path.join(root, 'proc/self/mountinfo')).flatMap((line) => {
      // ID PARENT DEVICE ROOT MOUNTPOINT OPTIONS … - TYPE SOURCE OPTIONS
      const [mounted, ofType] = line.split(' - ').map((part) => part.split(' '))
      const [mountRoot, mountPoint] = [mounted?.[3], mounted?.[4]]
      const [type, , options = ''] = ofType ?? []
      if (mountRoot === undefined || mountPoint === undefined) return []
      if (type === 'cgroup2') {
        const group = groups.find(([id]) => id === '0')
        return group ? limits(root, mountPoint, mountRoot, group[2]!, quotaOfV2) : []
      }
      if (type !== 'cgroup' || !options.split(',').includes('cpu')) return []
      const group = groups.find(([, controllers]) => controllers?.split(',').includes('cpu'))
      return group ? limits(root, mountPoint, mountRoot, group[2]!, quotaOfV1) : []
    }),
    Number.POSITIVE_INFINITY,
  )
}

/** The quotas of a group and of those above it, as far as they are mounted. */
function limits(
  root: string,
  mountPoint: string,
  mountRoot: string,
  group: string,
  quotaOf: (folder: string) => number,
): number[] {
  // A container may see its own group as the root of the mount, and its path as the host names it.
  const inside = path.relative(mountRoot, group)
  const parts = inside === '' || inside.startsWith('..') ? [] : inside.split('/')
  return Array.from({ length: parts.length + 1 }, (_, count) =>
    quotaOf(path.join(root, mountPoint, ...parts.slice(0, count))),
  )
}

/** `cpu.max` is `QUOTA PERIOD`, in microseconds, or `max PERIOD`. */
const quotaOfV2 = (folder: string) => {
  const [quota, period] = text(path.join(folder, 'cpu.max')).split(' ')
  return cores(Number(quota), Number(period))
}
/** A quota of -1 is none. */
const quotaOfV1 = (folder: string) =>
  cores(
    Number(text(path.join(folder, 'cpu.cfs_quota_us')) || Number.NaN),
    Number(text(path.join(folder, 'cpu.cfs_period_us')) || Number.NaN),
  )
const cores = (quota: number, period: number) => (quota > 0 && period > 0 ? quota / period : Number.POSITIVE_INFINITY)

const lines = (file: string) => text(file).split('\n').filter(Boolean)

/** Empty where there is no such file: not Linux, or no such limit. */
function text(file: string): string {
  try {
    return readFileSync(file, 'utf8').trim()
  } catch {
    return ''
  }
}
