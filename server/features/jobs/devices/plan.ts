// On how many devices a training runs: as many as its prediction needs of what they have when nothing else uses them.
import type { Device } from './list.ts'

/** What a training is predicted to take of a device's memory, in MB. */
export interface Need {
  /** With all weights on it, for passes of a usual size; null: not known. */
  alone_mb: number | null
  /** The same with the shortest rows: what it takes is known only to the trainer, which reads the rows. */
  least_mb: number | null
  /** Memory on each of so many devices that share the weights; or why its weights are not shared. */
  shared: ((devices: number) => number) | string
}

export interface Plan {
  devices: number
  /** Memory on each device, and what each has for it; null: not known. */
  needed_mb: number | null
  available_mb: number | null
  /** Whether the devices share the weights, instead of having all of them each. */
  sharded: boolean
}

/** The part of a GPU's memory that a prediction may take: its driver and CUDA take the rest. */
const usable = { gpu: 0.95, cpu: 1 }

const usableMb = ({ on, memory_mb }: Device) => (memory_mb === null ? Number.POSITIVE_INFINITY : memory_mb * usable[on])

/**
 * The plan for a training whose job is to have `processes`, on some of these devices: one if it fits, else as few as
 * can share its weights, else one if it fits with short rows. Or why it fits on none, and not on all together.
 */
export function planFor(need: Need, devices: readonly Device[], processes: number): Plan | { refused: string } {
  const { alone_mb, least_mb, shared } = need
  const memories = devices.map(usableMb).sort((a, b) => b - a)
  // A machine whose devices are not there yet refuses nothing.
  const largest_mb = memories[0] ?? Number.POSITIVE_INFINITY
  const withAll = (needed_mb: number | null): Plan => {
    const fitting = memories.filter((mb) => needed_mb === null || needed_mb <= mb).length
    // Processes on the cores share them.
    const most = devices.every(({ on }) => on === 'cpu') ? devices.length : fitting
    const count = Math.max(1, Math.min(processes, most))
    return { devices: count, needed_mb, available_mb: known(memories[count - 1]), sharded: false }
  }
  if (alone_mb === null || least_mb === null || alone_mb <= largest_mb) return withAll(alone_mb)
  for (let count = 2; count <= devices.length && typeof shared !== 'string'; count++) {
    const needed_mb = shared(count)
    if (needed_mb <= memories[count - 1]!)
      return { devices: count, needed_mb, available_mb: known(memories[count - 1]), sharded: true }
  }
  if (least_mb <= largest_mb) return withAll(least_mb)
  const has = devices.length === 1 ? `${devices[0]!.name} has` : `the largest of ${devices.length} devices has`
  const why =
    typeof shared === 'string'
      ? shared
      : `Shared by all ${devices.length}, it would take ${gigabytes(shared(devices.length))} of each.`
  return {
    refused: [
      `The training would take at least ${gigabytes(least_mb)} of memory, and ${has} ${gigabytes(largest_mb)} for it.`,
      ...(devices.length > 1 ? [why] : []),
      'Take qlora, a smaller base or a smaller max_length.',
    ].join(' '),
  }
}

const known = (mb: number | undefined) => (mb === undefined || mb === Number.POSITIVE_INFINITY ? null : mb)
export const gigabytes = (mb: number) => `${(mb / 1000).toFixed(1)} GB`
