// A base that vLLM computes: how it is started, and what it is asked for.
import { statSync } from 'node:fs'
import type { Logger } from 'pino'
import { ApiError } from '../../contract/errors.ts'
import { abortable } from '../../lib/abortable.ts'
import { vllmOverhead_bytes } from '../../lib/engine-choice.ts'
import type { Model } from '../llama/model.ts'
import type { RemoteBase } from '../models/models.ts'
import type { TokenLogprobs } from '../sampling/logprobs.ts'
import { Refused, readEvents, readJson, reasonIn, reasonOf } from './connection.ts'
import { freestGpu, memoryShare, processor, weightFiles } from './placement.ts'
import { type Instance, VllmProcess, vllmVersion } from './process.ts'
import { Asleep, type Claim, type DeviceClaims, type Gate, type Sleeper, type SleepTimes } from './sleep.ts'
import { instanceEnded, SleepMode } from './sleep-mode.ts'

/** The name of the base in its own vLLM. */
const baseName = 'base'
/** Ranks that vLLM reserves memory for, and adapters in one batch. */
const lora = { rank_max: 64, at_once: 8, in_memory: 64 }
/** Log-probabilities of a position: one more than a request may ask for. */
const logprobsMax = 32
/** Sequences that are computed together. */
const sequencesMax = { gpu: 256, cpu: 32 }
export interface VllmOptions {
  python: string
  /** More options of `vllm serve`, which take precedence. */
  options: readonly string[]
  /** Most memory for KV caches; null: a share of the device's. */
  cache_bytes: number | null
  /** Whether trainings may put vLLM to sleep. */
  sleeps: boolean
  claims: DeviceClaims
  /** Aborts when the engine stops: a start ends at once. */
  stopping: AbortSignal
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

type Sizes = Pick<VllmBase, 'context_length' | 'sequences_max' | 'weight_bytes' | 'devices' | 'device_bytes'>

export class VllmBase implements RemoteBase, Sleeper {
  readonly sequences_max: number
  readonly context_length: number
  readonly weight_bytes: number
  readonly devices: readonly string[] | null
  /** What it takes of the memory of each device. */
  readonly device_bytes: number
  isStarting = true
  private readonly sleepMode: SleepMode
  private readonly claims: DeviceClaims
  private readonly process: VllmProcess
  private readonly log: Logger
  /** Checkpoints of the adapters that may be asked for. */
  private readonly checkpoints = new Map<string, string>()

  private constructor(
    process: VllmProcess,
    claims: DeviceClaims,
    log: Logger,
    { hasSleepMode, ...sizes }: Sizes & { hasSleepMode: boolean },
  ) {
    this.process = process
    this.sleepMode = new SleepMode({ process, hasSleepMode, weight_bytes: sizes.weight_bytes, log })
    this.claims = claims
    this.log = log
    this.context_length = sizes.context_length
    this.sequences_max = sizes.sequences_max
    this.weight_bytes = sizes.weight_bytes
    this.devices = sizes.devices
    this.device_bytes = sizes.device_bytes
  }

  /**
   * Starts vLLM for a checkpoint. Throws an Error with its reason if it cannot serve it, and Asleep where a training
   * has claimed the devices.
   */
  static async start(model: Model, checkpoint: string, options: VllmOptions): Promise<VllmBase> {
    const { python, options: more, sleeps, claims, stopping, log } = options
    const isCpu = (await vllmVersion(python)).endsWith('+cpu')
    const weight_bytes = weightFiles(checkpoint).reduce((sum, file) => sum + statSync(file).size, 0)
    const device = isCpu ? processor() : await freestGpu(more, claims)
    if (claims.claimOn(device.ids)) throw new Asleep()
    if (stopping.aborted) throw isStopping()
    const sequences_max = isCpu ? sequencesMax.cpu : sequencesMax.gpu
    const { cache_bytes, context_length } = memoryShare(model, device, weight_bytes, options.cache_bytes, sequences_max)
    const device_bytes = weight_bytes + cache_bytes + vllmOverhead_bytes
    const share = Math.min(0.95, device_bytes / device.total_bytes)
    const hasSleepMode = sleeps && !isCpu
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
      ...(hasSleepMode ? ['--enable-sleep-mode'] : []),
      ...more,
    ]
    // Its routes for sleep are among those for development. Only this user reaches the socket.
    const env = { ...device.env, ...(hasSleepMode && { VLLM_SERVER_DEV_MODE: '1' }) }
    const child = new VllmProcess({ python, args, env, log })
    const began_ms = performance.now()
    const sizes = { context_length, sequences_max, weight_bytes, devices: device.ids, device_bytes, hasSleepMode }
    const base = new VllmBase(child, claims, log, sizes)
    void claims.add(base)
    const end = () => void base.stop()
    stopping.addEventListener('abort', end)
    try {
      await base.tryOnce()
      base.isStarting = false
    } catch (error) {
      await base.stop()
      if (stopping.aborted) throw isStopping()
      throw base.asleep_for !== null ? new Asleep() : error
    } finally {
      stopping.removeEventListener('abort', end)
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
    // Its first request loads it.
    if (!this.gate.isOpen) return
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
    // One that sleeps has no memory to free it in, and no work with it before this is done.
    await this.sleepMode.whenAwake(() =>
      instance.connection
        .post('/v1/unload_lora_adapter', { lora_name: name }, instance.ended)
        .then((response) => void response.on('error', () => {}).resume())
        // It died, and its adapters with it.
        .catch(() => {}),
    )
  }

  stop(): Promise<void> {
    this.claims.delete(this)
    return this.process.stop()
  }

  /** The job of the training that it sleeps for; null: it is awake. */
  get asleep_for(): string | null {
    return this.sleepMode.claim?.job ?? null
  }

  get gate(): Gate {
    return this.sleepMode.gate
  }

  follow(claim: Claim | null, times: SleepTimes): Promise<void> {
    return this.sleepMode.follow(claim, times)
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
    const { instance, response, inTime, end } = await this.ask(
      adapter,
      { ...body, stream: true, stream_options },
      signal,
    )
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
      throw this.explained(error, instance, signal, inTime)
    } finally {
      end()
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
    const body = { token_ids: tokens, sampling_params }
    const { instance, response, inTime, end } = await this.ask(adapter, body, signal)
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
      throw this.explained(error, instance, signal, inTime)
    } finally {
      end()
    }
  }

  /**
   * Sends a request to the running vLLM, and to the next one if this one had died before. A base that sleeps is waited
   * for. `end` must be called when the answer has been read.
   */
  private async ask(adapter: string | null, body: object, caller: AbortSignal) {
    const { cut, end } = await this.gate.enter(caller)
    const signal = AbortSignal.any([caller, cut])
    try {
      for (let isRetry = false; ; isRetry = true) {
        const instance = await abortable(this.process.instance(), signal)
        const inTime = AbortSignal.any([signal, instance.ended])
        try {
          if (adapter !== null) await this.ensureAdapter(instance, adapter)
          const model = adapter ?? baseName
          const response = await instance.connection.post('/inference/v1/generate', { model, ...body }, inTime)
          return { instance, response, inTime: signal, end }
        } catch (error) {
          if (isRetry || signal.aborted || !wasNotReached(error)) throw this.explained(error, instance, caller, signal)
          // Its exit is noticed a moment later.
          await instanceEnded(instance)
        }
      }
    } catch (error) {
      end()
      throw error
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

  /**
   * An error for the caller: what vLLM refused, or that it ended. An abort's own error passes. `inTime`: the caller's
   * signal, which a training that claims the memory aborts too.
   */
  private explained(error: unknown, instance: Instance, signal: AbortSignal, inTime: AbortSignal): unknown {
    if (signal.aborted || error instanceof ApiError) return error
    if (inTime.aborted) return inTime.reason
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

const isStopping = () => new ApiError('shutting_down', 'The engine is stopping.')

const wasNotReached = (error: unknown) => ['ECONNREFUSED', 'ENOENT'].includes((error as { code?: string }).code ?? '')

const stream_options = { include_usage: true }

/** vLLM lists the token itself first, whether or not it is one of the likeliest. */
export const likeliest = (all: TokenLogprobs['top'], top: number): TokenLogprobs['top'] =>
  all.sort((a, b) => b.logprob - a.logprob).slice(0, top)
