// Routes that list, load and unload models.
import type { IncomingMessage, ServerResponse } from 'node:http'
import { z } from 'zod'
import type { CpuThrottle } from '../../batching/cpu-throttle.ts'
import type { MemoryLimits } from '../../batching/slot-sizes.ts'
import type { Models } from '../../models/models.ts'
import type { DeviceClaims } from '../../vllm/sleep.ts'
import { sleepOf } from '../../vllm/vllm.ts'
import { readBody, sendJson } from '../io.ts'
import { servedContextLength } from '../prepare.ts'

const Name = z.string().min(1).max(256)
const Path = z.string().min(1).max(4096)
const projectorFile = { projector: Path.optional(), projector_sha256: z.string().length(64).optional() }
const LoadAdapter = z.looseObject({
  lora_name: Name,
  lora_path: Path,
  base_model_name: Name,
  drafts: Path.optional(),
  checkpoint: Path.optional(),
  ...projectorFile,
})
const UnloadAdapter = z.looseObject({ lora_name: Name })
const LoadModel = z.looseObject({
  name: Name,
  path: Path,
  matryoshka: z.boolean().optional(),
  keep_original: z.boolean().optional(),
  drafts: Path.optional(),
  checkpoint: Path.optional(),
  ...projectorFile,
})
const UnloadModel = z.looseObject({ name: Name })
const ClaimDevices = z.looseObject({
  version: z.int(),
  claims: z.array(z.object({ job: Name, devices: z.array(Name), end: z.boolean() })),
  holds: z.array(z.object({ devices: z.array(Name), bytes: z.number().min(0) })).default([]),
  grace_ms: z.number().min(0).max(3_600_000),
  wait_ms: z.number().min(0).max(3_600_000),
})
const LeaveCores = z.looseObject({ share: z.number().min(0).max(0.9), for_ms: z.number().min(0).max(60_000) })

/** Only the service sees file paths, sizes, and how many tokens there are to draft from. */
export function listModels(models: Models, limits: MemoryLimits, response: ServerResponse, withFiles: boolean): void {
  const data = models
    .list()
    .map((served) => ({
      id: served.name,
      object: 'model',
      created: served.created,
      owned_by: 'tunery',
      category: served.kind === 'embedding' ? 'embedding' : served.projector ? 'multimodal' : 'language',
      status: 'loaded',
      root: withFiles ? served.path : served.name,
      parent: served.base_name,
      max_model_len: servedContextLength(served.model, limits),
      ...(withFiles && {
        draft_tokens: served.drafts?.tokens.length ?? 0,
        bytes: served.adapter ? served.adapter.bytes : served.model.weight_bytes,
        eight_bits: served.model.is_eight_bit_copy,
        server: served.remote ? 'vllm' : 'engine',
        server_problem: served.remote_problem,
        ...sleepOf(served),
      }),
    }))
  sendJson(response, 200, { object: 'list', data })
}

export async function loadAdapter(models: Models, request: IncomingMessage, response: ServerResponse): Promise<void> {
  const { lora_name, lora_path, base_model_name, ...options } = await readBody(request, LoadAdapter)
  await models.loadAdapter(lora_name, lora_path, base_model_name, options)
  sendJson(response, 200, { status: 'loaded', lora_name })
}

export async function unloadAdapter(models: Models, request: IncomingMessage, response: ServerResponse): Promise<void> {
  const { lora_name } = await readBody(request, UnloadAdapter)
  await models.unload(lora_name, 'adapter')
  sendJson(response, 200, { status: 'unloaded', lora_name })
}

export async function loadModel(
  models: Models,
  claims: DeviceClaims,
  request: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  const { name, path, ...options } = await readBody(request, LoadModel)
  await claims.whenAwake(() => models.loadBase(name, path, options))
  sendJson(response, 200, { status: 'loaded', name })
}

export async function unloadModel(models: Models, request: IncomingMessage, response: ServerResponse): Promise<void> {
  const { name } = await readBody(request, UnloadModel)
  await models.unload(name, 'base')
  sendJson(response, 200, { status: 'unloaded', name })
}

/** Yields a share of the cores' time to another program of the service for `for_ms`. */
export async function leaveCores(
  cpuThrottle: CpuThrottle,
  request: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  const { share, for_ms } = await readBody(request, LeaveCores)
  cpuThrottle.yieldShare(share, for_ms)
  sendJson(response, 200, { status: 'ok' })
}

/** Takes the claims of trainings on devices. Answers when the bases on them sleep. */
export async function claimDevices(
  claims: DeviceClaims,
  request: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  await claims.apply(await readBody(request, ClaimDevices))
  sendJson(response, 200, { status: 'ok' })
}
