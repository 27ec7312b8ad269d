// The devices of this machine as jobs see them: on how many one would run, and which an attempt holds.

import type { Logger } from 'pino'
import type { ResolvedConfig } from '../../../../contract/fine-tuning.ts'
import type { Machine } from '../../../../contract/machine.ts'
import { vllmOverhead_bytes } from '../../../../lib/engine-choice.ts'
import type { Config } from '../../../config.ts'
import type { Hub } from '../../hub/index.ts'
import { readDevices } from './list.ts'
import { needOf, needOfRun } from './need.ts'
import type { Serving } from './pausing.ts'
import type { Plan } from './plan.ts'
import { DevicePool, type Place } from './pool.ts'

export type { Place, Plan, Serving }

export interface Devices {
  /** How many trainings there is room for, if each takes as few devices as it may. */
  at_once: number
  /** On how many devices a job would run; or why it fits on none, and not on all together. */
  plan(base_model_id: string, config: ResolvedConfig): Promise<Plan | { refused: string }>
  /** Whether a job with this plan would put to sleep what is served on its devices. */
  wouldPause(plan: Plan): Promise<boolean>
  /** Takes devices for an attempt at a job. `waits`: why it must wait, and whether devices were given back since. */
  take(
    job_id: string,
    account_id: string,
    base_model_id: string,
    config: ResolvedConfig,
    signal: AbortSignal,
  ): Promise<Place | { waits: string; outdated(): boolean } | { refused: string }>
  /**
   * Takes one device for the adapters that a client trains step by step. `rank`: of the first one. `waits`: why it must
   * wait.
   */
  takeForRun(
    run_id: string,
    account_id: string,
    base_model_id: string,
    rank: number,
    signal: AbortSignal,
  ): Promise<Place | { waits: string } | { refused: string }>
  /** Whether trainings found no device and still want one. */
  hasWaiting(): boolean
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
  config: Pick<Config, 'training_devices' | 'trainer_processes' | 'gpu' | 'training_may_pause_serving'>
  hub: Hub
  /** Whether other servers may have other devices: a job that does not fit here waits for them. */
  hasOthers(): Promise<boolean>
  /** What vLLM serves on this machine; undefined: nothing. */
  serving: Serving | undefined
  /** The devices that these waiting jobs need may be free now. */
  onReleased(job_ids: string[]): void
  log: Logger
}

export async function createDevices({ config, hub, hasOthers, serving, onReleased, log }: Options): Promise<Devices> {
  const read = () =>
    readDevices({
      names: config.training_devices,
      gpus: config.gpu !== 'none',
      cuda_visible_devices: process.env.CUDA_VISIBLE_DEVICES,
    })
  const { devices, missing } = await read()
  if (missing.length > 0)
    log.warn(
      { missing },
      `TUNERY_TRAINING_DEVICES names devices that this machine does not have: ${missing.join(', ')}. ` +
        'Jobs train without them; `nvidia-smi -L` lists the GPUs.',
    )
  const device = devices[0]?.on ?? 'gpu'
  let releases = 0
  /** What a vLLM for the base of a job would take, which answers with the job's result: none if one runs. */
  const leftTo = async (base_model_id: string): Promise<number> => {
    if (!serving || (await serving.awake()).some(({ id }) => id === base_model_id)) return 0
    return ((hub.servingBytes(base_model_id) ?? 0) + vllmOverhead_bytes) / 1e6
  }
  const pool = new DevicePool({
    read,
    processes: config.trainer_processes,
    serving,
    mayPause: config.training_may_pause_serving,
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
    wouldPause: (plan) => pool.wouldPause(plan),
    async take(job_id, account_id, base_model_id, resolved, signal) {
      const before = releases
      const need = needOf(hub, base_model_id, resolved, device)
      const left_mb = await leftTo(base_model_id)
      const needs_serving = resolved.method_options.objective.value === 'reinforcement'
      const found = await pool.take({ job_id, account_id, need, left_mb, needs_serving, signal })
      if ('waits' in found) return { ...found, outdated: () => releases > before }
      if ('refused' in found && (await hasOthers()))
        return { waits: `The job waits for a server with room for it. ${found.refused}`, outdated: () => false }
      return found
    },
    async takeForRun(job_id, account_id, base_model_id, rank, signal) {
      const left_mb = await leftTo(base_model_id)
      const need = needOfRun(hub, base_model_id, rank, device)
      return await pool.take({ job_id, account_id, need, left_mb, signal })
    },
    hasWaiting: () => pool.hasWaiting(),
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
