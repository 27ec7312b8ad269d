// The devices of this machine as jobs see them: on how many one would run, and which an attempt holds.
import type { ResolvedConfig } from '../../../../contract/fine-tuning.ts'
import type { Machine } from '../../../../contract/machine.ts'
import type { Config } from '../../../config.ts'
import type { Hub } from '../../hub/index.ts'
import { readDevices } from './list.ts'
import { needOf } from './need.ts'
import type { Plan } from './plan.ts'
import { DevicePool, type Place } from './pool.ts'

export type { Place, Plan }

export interface Devices {
  /** How many trainings there is room for, if each takes as few devices as it may. */
  at_once: number
  /** On how many devices a job would run; or why it fits on none, and not on all together. */
  plan(base_model_id: string, config: ResolvedConfig): Promise<Plan | { refused: string }>
  /** Takes devices for an attempt at a job. `waits`: why it must wait, and whether devices were given back since. */
  take(
    job_id: string,
    account_id: string,
    base_model_id: string,
    config: ResolvedConfig,
  ): Promise<Place | { waits: string; outdated(): boolean } | { refused: string }>
  /** The environment of a trial run, and the memory that it may take; null: not known. */
  forTrial(): Promise<{ env: Record<string, string>; free_mb: number | null }>
  /** Whether a job of another account waits for several devices at once. */
  areWanted(account_id: string): boolean
  /** Why jobs that have not been looked at wait: all devices have a training. Undefined with one device alone. */
  busy(): string | undefined
  /** The devices as the operator sees them. */
  list(): Promise<Machine['training_devices']>
}

const elsewhere: Plan = { devices: 1, needed_mb: null, available_mb: null, sharded: false }

interface Options {
  config: Pick<Config, 'training_devices' | 'trainer_processes' | 'gpu'>
  hub: Hub
  /** Whether other servers may have other devices: a job that does not fit here waits for them. */
  hasOthers(): Promise<boolean>
  /** The devices that these waiting jobs need may be free now. */
  onReleased(job_ids: string[]): void
}

export async function createDevices({ config, hub, hasOthers, onReleased }: Options): Promise<Devices> {
  const read = () =>
    readDevices({
      names: config.training_devices,
      gpus: config.gpu !== 'none',
      cuda_visible_devices: process.env.CUDA_VISIBLE_DEVICES,
    })
  const { devices } = await read()
  const device = devices[0]?.on ?? 'gpu'
  let releases = 0
  const pool = new DevicePool({
    read,
    processes: config.trainer_processes,
    onReleased(job_ids) {
      releases++
      onReleased(job_ids)
    },
  })
  return {
    at_once: pool.atOnce(devices),
    async plan(base_model_id, resolved) {
      const plan = await pool.plan(needOf(hub, base_model_id, resolved, device))
      // Another server may have room for it.
      return 'refused' in plan && (await hasOthers()) ? elsewhere : plan
    },
    async take(job_id, account_id, base_model_id, resolved) {
      const before = releases
      const need = needOf(hub, base_model_id, resolved, device)
      const found = await pool.take({ job_id, account_id, need })
      if ('waits' in found) return { ...found, outdated: () => releases > before }
      if ('refused' in found && (await hasOthers()))
        return { waits: `The job waits for a server with room for it. ${found.refused}`, outdated: () => false }
      return found
    },
    forTrial: () => pool.forTrial(),
    areWanted: (account_id) => pool.isWanted(account_id),
    busy: () =>
      devices.length > 1 && pool.held >= devices.length
        ? `The job waits: other jobs train on all ${devices.length} devices.`
        : undefined,
    list: async () =>
      (await pool.list()).map(({ name, memory_mb, free_mb, job_id }) => ({
        name,
        memory_bytes: bytesOf(memory_mb),
        free_bytes: bytesOf(free_mb),
        job_id,
      })),
  }
}

const bytesOf = (mb: number | null) => (mb === null ? null : Math.round(mb * 1e6))
