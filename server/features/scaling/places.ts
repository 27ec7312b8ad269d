// Places for replicas on this machine: sets of cores, each for one replica, and GPUs, which replicas of different
// deployments share as their memory allows.

import os from 'node:os'
import type { Placement } from '../serving/index.ts'
import { classOf, type Gpu, type ReadGpus } from './gpus.ts'

/** A replica's hold on a place. */
export interface Place {
  class: string
  placement: Placement
  /** Its name among all places in use: that of the placement, with a number where replicas share it. */
  slot: string
  /** Undefined on cores. */
  gpu?: Gpu
  /** Memory that it is expected to take, until `isRunning` says that it has taken it. */
  bytes: number
  isRunning: boolean
  release(): void
}

interface InstanceType {
  name: string
  places: number
  free: number
}

export interface Places {
  /** The classes of this machine, the default first. */
  classes(): Promise<InstanceType[]>
  /** How many replicas of a deployment this class has room for, those that it has included. */
  room(instance_type: string, deployment_id: string): Promise<number>
  /** Takes a place for a replica that needs `weights_bytes` of memory besides its cache; or says why there is none. */
  take(instance_type: string, deployment_id: string, weights_bytes: number): Promise<Place | { refused: string }>
}

interface Options {
  cores: readonly number[]
  cores_per_replica: number
  gpus: ReadGpus
  /** Whether cores can be assigned: taskset is installed. */
  pins: boolean
  available_bytes?: () => number
  total_bytes?: number
}

/** Memory of a replica's process besides weights and caches. */
const process_bytes = 300e6
const gpuThreads = 4
const gpuClassRead_ms = 60_000

export function createPlaces({
  cores,
  cores_per_replica,
  gpus,
  pins,
  available_bytes = () => process.availableMemory(),
  total_bytes = memoryTotal(),
}: Options): Places {
  const size = Math.min(cores_per_replica, cores.length)
  const sets = Array.from({ length: Math.floor(cores.length / size) }, (_, index) =>
    cores.slice(index * size, (index + 1) * size),
  )
  const held = new Map<Place, { deployment_id: string; key: string }>()
  // As much in all as the machine's own engine may take.
  const cache_bytes = Math.floor(total_bytes / 4 / sets.length)
  let cached: { at: number; gpus: Promise<Gpu[]> } | undefined

  /** Their number and names do not change; memory is read again for each replica. */
  function knownGpus(): Promise<Gpu[]> {
    if (!cached || performance.now() - cached.at > gpuClassRead_ms) cached = { at: performance.now(), gpus: gpus() }
    return cached.gpus
  }
  const holders = (key: string) => [...held.values()].filter((holder) => holder.key === key)
  const freeSets = () => sets.filter((_, index) => holders(`cores ${index}`).length === 0)
  /** Memory of replicas on this GPU, or on cores, that have not read their weights yet. */
  const promised_bytes = (gpu?: string) =>
    [...held.keys()].reduce((sum, place) => sum + (!place.isRunning && place.gpu?.uuid === gpu ? place.bytes : 0), 0)

  function hold(place: Omit<Place, 'slot' | 'release' | 'isRunning'>, deployment_id: string, key: string): Place {
    const { name } = place.placement
    const used = new Set([...held.keys()].map(({ slot }) => slot))
    let slot = name
    for (let number = 2; used.has(slot); number++) slot = `${name} (${number})`
    const taken: Place = { ...place, slot, isRunning: false, release: () => void held.delete(taken) }
    held.set(taken, { deployment_id, key })
    return taken
  }

  function takeCores(deployment_id: string, weights_bytes: number): Place | { refused: string } {
    const index = sets.findIndex((_, position) => holders(`cores ${position}`).length === 0)
    const set = sets[index]
    if (!set)
      return {
        refused:
          `All ${sets.length} places of the class cpu are taken; each has ${text(size, 'core')} ` +
          '(TUNERY_REPLICA_CORES).',
      }
    const bytes = weights_bytes + process_bytes + cache_bytes / 4
    const available = available_bytes() - promised_bytes()
    if (bytes > available) return { refused: noMemory(bytes, available) }
    const placement = {
      name: `${size === 1 ? 'core' : 'cores'} ${ranges(set)}`,
      threads: set.length,
      cache_bytes,
      ...(pins && { cores: set }),
    }
    return hold({ class: 'cpu', placement, bytes }, deployment_id, `cores ${index}`)
  }

  async function takeGpu(instance_type: string, deployment_id: string, weights_bytes: number) {
    cached = undefined
    const all = (await knownGpus()).filter((gpu) => classOf(gpu) === instance_type)
    const ofOthers = all.filter(({ uuid }) => holders(uuid).every((holder) => holder.deployment_id !== deployment_id))
    if (ofOthers.length === 0)
      return {
        refused: `The deployment has a replica on each of the ${all.length} GPUs of the class ${instance_type}.`,
      }
    const [gpu] = ofOthers.toSorted(
      (a, b) => holders(a.uuid).length - holders(b.uuid).length || b.free_bytes - a.free_bytes,
    )
    const bytes = weights_bytes * 1.1 + 1e9
    const available = gpu!.free_bytes - promised_bytes(gpu!.uuid)
    if (bytes > available) return { refused: noMemory(bytes, available, ` of GPU ${gpu!.index}`) }
    const placement = {
      name: `GPU ${gpu!.index}`,
      threads: Math.min(gpuThreads, cores.length),
      cache_bytes: Math.floor(available - bytes),
      env: { CUDA_VISIBLE_DEVICES: gpu!.uuid },
    }
    return hold({ class: instance_type, placement, gpu: gpu!, bytes }, deployment_id, gpu!.uuid)
  }

  return {
    async classes() {
      const byClass = Map.groupBy(await knownGpus(), classOf)
      return [
        ...[...byClass].map(([name, all]) => ({
          name,
          places: all.length,
          free: all.filter(({ uuid }) => holders(uuid).length === 0).length,
        })),
        { name: 'cpu', places: sets.length, free: freeSets().length },
      ]
    },

    async room(instance_type, deployment_id) {
      if (instance_type !== 'cpu') return (await knownGpus()).filter((gpu) => classOf(gpu) === instance_type).length
      const ours = [...held].filter(
        ([place, holder]) => place.class === 'cpu' && holder.deployment_id === deployment_id,
      )
      return freeSets().length + ours.length
    },

    take: async (instance_type, deployment_id, weights_bytes) =>
      instance_type === 'cpu'
        ? takeCores(deployment_id, weights_bytes)
        : takeGpu(instance_type, deployment_id, weights_bytes),
  }
}

/** [0, 1, 2, 5] is `0-2,5`. */
export function ranges(numbers: readonly number[]): string {
  const parts: [first: number, last: number][] = []
  for (const number of numbers) {
    const part = parts.at(-1)
    if (part && part[1] === number - 1) part[1] = number
    else parts.push([number, number])
  }
  return parts.map(([first, last]) => (first === last ? `${first}` : `${first}-${last}`)).join(',')
}

function memoryTotal(): number {
  const constrained = process.constrainedMemory()
  return constrained > 0 ? Math.min(os.totalmem(), constrained) : os.totalmem()
}

const text = (count: number, noun: string) => `${count} ${noun}${count === 1 ? '' : 's'}`
const noMemory = (bytes: number, available: number, of = '') =>
  `A replica takes about ${megabytes(bytes)} MB of memory${of}, and ${megabytes(Math.max(0, available))} MB are free.`
const megabytes = (bytes: number) => Math.round(bytes / 1e6).toLocaleString('en')
