// A base that vLLM computes: how it is started, and what it is asked for.
import { once } from 'node:events'
import { readdirSync, statSync } from 'node:fs'
import path from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Logger } from 'pino'
import { ApiError } from '../../contract/errors.ts'
import { type NvidiaGpu, readNvidiaGpus } from '../../lib/nvidia-gpus.ts'
import { usableMemory } from '../../lib/usable-memory.ts'
import type { Model } from '../llama/model.ts'
import type { RemoteBase } from '../models/models.ts'
import type { TokenLogprobs } from '../sampling/logprobs.ts'
import { Refused, readEvents, readJson, reasonOf } from './connection.ts'
import { type Instance, VllmProcess, vllmVersion } from './process.ts'

/** The name of the base in its own vLLM. */
const baseName = 'base'
/** Ranks that vLLM reserves memory for, and adapters in one batch. */
const lora = { rank_max: 64, at_once: 8, in_memory: 64 }
/** Log-probabilities of a position: one more than a request may ask for. */
const logprobsMax = 32
/** Sequences that are computed together. */
const sequencesMax = { gpu: 256, cpu: 32 }
/** What vLLM takes beside weights and KV cache: its libraries, graphs and buffers. */
const overhead_bytes = 3e9
const lengthStep = 256
/** How long the exit of a process may take after a refused connection. */
const exitNotice_ms = 5000

export interface VllmOptions {
  python: string
  /** More options of `vllm serve`, which take precedence. */
  options: readonly string[]
  /** Most memory for KV caches; null: a share of the device's. */
  cache_bytes: number | null
  log: Logger
}

/** A body of `/inference/v1/generate`, without the model. */
export interface GenerateBody {
  token_ids: readonly number[]
  sampling_params: Record<string, unknown>
  cache_salt?: string
  priority?: number
}

export interface GeneratedTokens {
  token_ids: number[]
  logprobs: { content: WireLogprob[] } | null
  finish_reason: string | null
}
interface WireLogprob {
  token_id: number
  logprob: number
  top_logprobs: { token_id: number; logprob: number }[]
}
type StreamEvent = {
  choices?: GeneratedTokens[]
  usage?: { prompt_tokens_details?: { cached_tokens?: number | null } | null } | null
  error?: { message?: string }
}

export class VllmBase implements RemoteBase {
  readonly sequences_max: number
  readonly context_length: number
  readonly weight_bytes: number
  private readonly process: VllmProcess
  private readonly log: Logger
  /** Checkpoints of the adapters that may be asked for. */
  private readonly checkpoints = new Map<string, string>()

  private constructor(
    process: VllmProcess,
    log: Logger,
    sizes: Pick<VllmBase, 'context_length' | 'sequences_max' | 'weight_bytes'>,
  ) {
    this.process = process
    this.log = log
    this.context_length = sizes.context_length
    this.sequences_max = sizes.sequences_max
    this.weight_bytes = sizes.weight_bytes
  }

  /** Starts vLLM for a checkpoint. Throws an Error with its reason if it cannot serve it. */
  static async start(model: Model, checkpoint: string, options: VllmOptions): Promise<VllmBase> {
    const { python, options: more, log } = options
    const isCpu = (await vllmVersion(python)).endsWith('+cpu')
    const weight_bytes = weightFiles(checkpoint).reduce((sum, file) => sum + statSync(file).size, 0)
    const device = isCpu ? { name: 'the processor', total_bytes: usableMemory(), env: {} } : await freestGpu(more)
    const sequences_max = isCpu ? sequencesMax.cpu : sequencesMax.gpu
    const { cache_bytes, context_length } = memoryShare(model, device.total_bytes, options.cache_bytes, sequences_max)
    const share = Math.min(0.95, (weight_bytes + cache_bytes + overhead_bytes) / device.total_bytes)
    const args = [
      checkpoint,
      ...['--served-model-name', baseName, '--max-model-len', String(context_length)],
      ...['--max-num-seqs', String(sequences_max), '--scheduling-policy', 'priority'],
      ...['--kv-cache-memory-bytes', String(cache_bytes), '--gpu-memory-utilization', share.toFixed(3)],
      ...['--enable-lora', '--max-lora-rank', String(lora.rank_max)],
      ...['--max-loras', String(lora.at_once), '--max-cpu-loras', String(lora.in_memory)],
      // Tokens in, tokens out.
      ...['--enable-scale-out', '--enable-prompt-tokens-details', '--max-logprobs', String(logprobsMax)],
      ...(isCpu ? ['--enforce-eager'] : []),
      ...more,
    ]
    const child = new VllmProcess({ python, args, env: device.env, log })
    const began_ms = performance.now()
    const base = new VllmBase(child, log, { context_length, sequences_max, weight_bytes })
    try {
      await base.tryOnce()
    } catch (error) {
      await child.stop()
      throw error
    }
    const seconds = Math.round((performance.now() - began_ms) / 1000)
    log.info({ checkpoint, on: device.name, context_length, cache_bytes, seconds }, 'vLLM serves a base')
    return base
  }

  /** Computes a token: some models load, and end vLLM at their first request. */
  private async tryOnce(): Promise<void> {
    const { connection, ended } = await this.process.instance()
    const sampling_params = { max_tokens: 1, temperature: 0, detokenize: false }
    const body = { model: baseName, token_ids: [1], sampling_params }
    await connection
      .post('/inference/v1/generate', body, ended)
      .then(readJson)
      .catch((error) => {
        const reason = this.process.reason() ?? (error as Error).message
        throw new Error(`vLLM loaded the base, but could not compute with it: ${reason}`)
      })
  }

  /** Loads an adapter now, and again whenever vLLM was restarted. Throws an Error with vLLM's reason. */
  async loadAdapter(name: string, checkpoint: string): Promise<void> {
    this.checkpoints.set(name, checkpoint)
    try {
      await this.ensureAdapter(await this.process.instance(), name)
    } catch (error) {
      this.checkpoints.delete(name)
      throw error
    }
  }

  async unloadAdapter(name: string): Promise<void> {
    this.checkpoints.delete(name)
    const instance = this.process.running()
    if (!instance?.adapters.delete(name)) return
    const body = { lora_name: name }
    await instance.connection
      .post('/v1/unload_lora_adapter', body, instance.ended)
      .then((response) => response.on('error', () => {}).resume())
      // It died, and its adapters with it.
      .catch(() => {})
  }

  stop(): Promise<void> {
    return this.process.stop()
  }

  /** Ends a vLLM that has work and makes no progress. */
  endHanging(): void {
    const instance = this.process.running()
    if (!instance) return
    this.log.error({ vllm: instance.pid }, 'vLLM has requests but makes no progress: it is killed and restarted')
    this.process.kill(instance)
  }

  /** The tokens of an answer as they come, then the tokens of the prompt that were cached. `adapter`: its name. */
  async *generate(
    adapter: string | null,
    body: GenerateBody,
    signal: AbortSignal,
  ): AsyncGenerator<GeneratedTokens | { cached_tokens: number }> {
    const { instance, response } = await this.ask(adapter, { ...body, stream: true, stream_options }, signal)
    try {
      if (response.statusCode !== 200) await readJson(response)
      for await (const data of readEvents(response)) {
        // Read to its end, so that the connection can be used again.
        if (data === '[DONE]') continue
        const { choices, usage, error } = JSON.parse(data) as StreamEvent
        if (error) throw new Refused(500, reasonOf({ error }))
        if (choices?.[0]) yield choices[0]
        if (usage) yield { cached_tokens: usage.prompt_tokens_details?.cached_tokens ?? 0 }
      }
    } catch (error) {
      throw this.explained(error, instance, signal)
    }
  }

  /** The log-probability of each token of a prompt, with the `top` likeliest; null for the first. */
  async promptLogprobs(
    adapter: string | null,
    tokens: readonly number[],
    top: number,
    signal: AbortSignal,
  ): Promise<TokenLogprobs[]> {
    const sampling_params = { max_tokens: 1, temperature: 0, detokenize: false, prompt_logprobs: top }
    const { instance, response } = await this.ask(adapter, { token_ids: tokens, sampling_params }, signal)
    try {
      const { prompt_logprobs } = (await readJson(response)) as {
        prompt_logprobs: (Record<string, { logprob: number }> | null)[]
      }
      return tokens.map((token, position) => {
        const row = prompt_logprobs[position]
        if (!row) return { token, logprob: null, top: [] }
        const all = Object.entries(row).map(([other, { logprob }]) => ({ token: Number(other), logprob }))
        return { token, logprob: row[token]?.logprob ?? null, top: likeliest(all, top) }
      })
    } catch (error) {
      throw this.explained(error, instance, signal)
    }
  }

  /** Sends a request to the running vLLM, and to the next one if this one had died before. */
  private async ask(adapter: string | null, body: object, signal: AbortSignal) {
    for (let isRetry = false; ; isRetry = true) {
      const instance = await this.process.instance()
      const inTime = AbortSignal.any([signal, instance.ended])
      try {
        if (adapter !== null) await this.ensureAdapter(instance, adapter)
        const model = adapter ?? baseName
        const response = await instance.connection.post('/inference/v1/generate', { model, ...body }, inTime)
        return { instance, response }
      } catch (error) {
        if (isRetry || signal.aborted || !wasNotReached(error)) throw this.explained(error, instance, signal)
        // Its exit is noticed a moment later.
        await Promise.race([
          instance.ended.aborted || once(instance.ended, 'abort'),
          sleep(exitNotice_ms, undefined, { ref: false }),
        ])
      }
    }
  }

  private ensureAdapter(instance: Instance, name: string): Promise<void> {
    const existing = instance.adapters.get(name)
    if (existing !== undefined) return existing
    const lora_path = this.checkpoints.get(name)
    if (lora_path === undefined)
      return Promise.reject(new ApiError('engine_unavailable', 'The model was unloaded. Try again in a moment.'))
    const load = async () => {
      const body = { lora_name: name, lora_path }
      const response = await instance.connection.post('/v1/load_lora_adapter', body, instance.ended)
      let text = ''
      for await (const part of response.setEncoding('utf8')) text += part
      if (response.statusCode === 200) return
      this.log.error({ adapter: name, reason: reasonIn(text) }, 'vLLM did not load an adapter')
      throw new ApiError('engine_failed', `vLLM did not load the adapter: ${reasonIn(text)}`)
    }
    const loading = load()
    instance.adapters.set(name, loading)
    loading.catch(() => instance.adapters.delete(name))
    return loading
  }

  /** An error for the caller: what vLLM refused, or that it ended. An abort's own error passes. */
  private explained(error: unknown, instance: Instance, signal: AbortSignal): unknown {
    if (signal.aborted || error instanceof ApiError) return error
    if (error instanceof Refused) {
      this.log.error({ status: error.status, reason: error.message }, 'vLLM refused a request')
      return new ApiError('engine_failed', 'vLLM could not compute this answer. The log of the service has the reason.')
    }
    if (!instance.ended.aborted) this.log.error({ err: error }, 'vLLM broke an answer')
    return new ApiError(
      'engine_unavailable',
      'vLLM ended while it worked on this request. It is being started again: try once more.',
    )
  }
}

const wasNotReached = (error: unknown) => ['ECONNREFUSED', 'ENOENT'].includes((error as { code?: string }).code ?? '')

const stream_options = { include_usage: true }

function reasonIn(text: string): string {
  try {
    return reasonOf(JSON.parse(text))
  } catch {
    return text.slice(0, 300)
  }
}

/** vLLM lists the token itself first, whether or not it is one of the likeliest. */
export const likeliest = (all: TokenLogprobs['top'], top: number): TokenLogprobs['top'] =>
  all.sort((a, b) => b.logprob - a.logprob).slice(0, top)

/** The files of a checkpoint's weights. */
export const weightFiles = (checkpoint: string): string[] =>
  readdirSync(checkpoint)
    .filter((name) => name.endsWith('.safetensors'))
    .sort()
    .map((name) => path.join(checkpoint, name))

/** Where a base is computed, and the environment of a vLLM that shall compute it there. */
interface Device {
  name: string
  total_bytes: number
  env: NodeJS.ProcessEnv
}

async function freestGpu(options: readonly string[]): Promise<Device> {
  return deviceOf((await readNvidiaGpus()) ?? [], process.env.CUDA_VISIBLE_DEVICES, options)
}

/**
 * The GPU with the most free memory, so that bases spread over several; those that the operator names, by
 * CUDA_VISIBLE_DEVICES or by options for several, are left to vLLM.
 */
export function deviceOf(
  gpus: readonly Pick<NvidiaGpu, 'index' | 'name' | 'total_bytes' | 'free_bytes'>[],
  visible: string | undefined,
  options: readonly string[],
): Device {
  const [freest] = gpus.toSorted((a, b) => (b.free_bytes ?? 0) - (a.free_bytes ?? 0))
  const isNamed = visible !== undefined || options.some((option) => /^(--[a-z]+-parallel-size|-[a-z]+p)\b/.test(option))
  const first = gpus.find(({ index }) => String(index) === visible?.split(',')[0]?.trim()) ?? gpus[0]
  const gpu = isNamed ? first : freest
  if (!gpu?.total_bytes) throw new Error('nvidia-smi shows no GPU, which this build of vLLM needs')
  // CUDA's own order differs from that of nvidia-smi.
  const env = isNamed ? {} : { CUDA_DEVICE_ORDER: 'PCI_BUS_ID', CUDA_VISIBLE_DEVICES: String(gpu.index) }
  return { name: gpu.name, total_bytes: gpu.total_bytes, env }
}

/**
 * A quarter of the device for KV caches, or less where no more could be used. The context is the model's, or as much of
 * it as that holds.
 */
export function memoryShare(
  { context_length, kv_bytes_per_token }: Pick<Model, 'context_length' | 'kv_bytes_per_token'>,
  total_bytes: number,
  cache_bytes_max: number | null,
  sequences: number,
): { cache_bytes: number; context_length: number } {
  const perToken = Math.max(1, kv_bytes_per_token)
  const most = cache_bytes_max ?? total_bytes / 4
  const cache_bytes = Math.floor(Math.min(most, sequences * context_length * perToken))
  // A block of each layer is vLLM's own.
  const fits = Math.floor((0.95 * cache_bytes) / perToken / lengthStep) * lengthStep
  return { cache_bytes, context_length: Math.max(lengthStep, Math.min(context_length, fits)) }
}
