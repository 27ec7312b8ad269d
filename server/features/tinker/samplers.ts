// Samplers: what a client samples from is a base, a checkpoint, or the weights of a run as they were, without a name.
// Tokens go to the engine and come back as they are.
import { mkdir, rm } from 'node:fs/promises'
import path from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { ApiError } from '../../../contract/errors.ts'
import { createFairQueue, type FairQueue } from '../../../lib/fair-queue.ts'
import { newId } from '../../../lib/ids.ts'
import type { Db } from '../../platform/db/open.ts'
import type { Caller } from '../../platform/http/caller.ts'
import { requireFreeDisk } from '../../platform/storage/free-disk.ts'
import type { StorageQuota } from '../../platform/storage/quota.ts'
import type { Hub } from '../hub/index.ts'
import type { Inference } from '../inference/index.ts'
import { type EngineClient, engineError, type Pools, readAll, type Target } from '../serving/index.ts'
import type { Usage } from '../usage/index.ts'
import type { Bases } from './bases.ts'
import type { Checkpoints } from './checkpoints.ts'
import type { FutureHandle, FutureResult, Futures, Requester } from './futures.ts'
import { parsePath, samplerIdOf } from './names.ts'
import { bytesOfFolder } from './owned-files.ts'
import { sampleRecorder } from './sample-usage.ts'
import { engineFields, outputOf, promptOf, Sampled } from './sample-wire.ts'
import type { Sessions } from './sessions.ts'
import { waitForSlot } from './slots.ts'
import * as store from './store.ts'
import { writeSampleOutput } from './wire/messages.ts'
import type { CreateSampler, Sample } from './wire/requests.ts'

type Call = (command: string, fields: Record<string, unknown>) => Promise<Record<string, unknown>>

/** Weights without a name that are kept of a run; older ones are deleted. */
const ephemeralMax = 16
/** Requests that are asked of the engine at once, of all accounts and of one. */
const atOnce = { all: 256, account: 24 }
/**
 * Samples that the engine has at once, of all accounts and of one: its queue has room for others beside them. An
 * account without any may begin a request of whatever size, so that none waits for another's to be done.
 */
const samplesMax = { all: 192, account: 64 }
/** After so long the engine is asked again whose queue was full. */
const fullWait_ms = 250
/** Numbers of the requests of each client of a sampler. */
const clientSpan = 1_000_000_000

interface Options {
  db: Db
  dataDir: string
  min_free_mb: number
  futures: Futures
  quota: Pick<StorageQuota, 'require'>
  sessions: Sessions
  bases: Bases
  checkpoints: Checkpoints
  hub: Hub
  inference: Pick<Inference, 'target'>
  engine: EngineClient
  pools: Pools
  usage: Pick<Usage, 'record'>
  pricing(base_model_id: string): { input_per_million_tokens: number; output_per_million_tokens: number }
  acquireSlot(account_id: string): Promise<(() => void) | undefined>
  now(): number
}

/** What a request is sampled from. */
interface Source {
  id: string
  base_model_id: string
  /** The model that the usage names. */
  model: string
  model_id: string
  target: Target
}

export class Samplers {
  private readonly options: Options
  private readonly inTurn: FairQueue = createFairQueue({ at_once: atOnce.all, at_once_per_account: atOnce.account })
  /** Samples that the engine has of each account, and who waits for some to be done. */
  private readonly samples = new Map<string, number>()
  private readonly waiting: (() => void)[] = []

  constructor(options: Options) {
    this.options = options
  }

  async create({ account_id }: Caller, body: CreateSampler): Promise<{ sampling_session_id: string }> {
    const { db, sessions } = this.options
    const session = await sessions.require(account_id, body.session_id)
    const id = samplerIdOf(session.id, body.sampling_session_seq_id)
    if (await store.findSampler(db, account_id, id)) return { sampling_session_id: id }
    const { base_model_id, model_name } = await this.baseOf(account_id, body)
    await this.insert({
      id,
      session_id: session.id,
      account_id,
      base_model_id,
      model_name,
      model_path: body.model_path,
    })
    return { sampling_session_id: id }
  }

  /** A sampler of a run's weights as they are now. */
  async createOfRun(
    run: store.RunRow,
    seq_id: number,
    use: <T>(run: (call: Call) => Promise<T>) => Promise<T>,
  ): Promise<string> {
    const { db, dataDir, min_free_mb, quota } = this.options
    const { session_id, account_id, base_model_id, model_name } = run
    const id = samplerIdOf(session_id, seq_id)
    const folder = path.join('tinker', session_id, `sample-${seq_id}`)
    await requireFreeDisk(dataDir, min_free_mb)
    await quota.require(db, account_id, 0)
    await mkdir(path.join(dataDir, 'tinker', session_id), { recursive: true, mode: 0o700 })
    const before = await store.findSampler(db, account_id, id)
    if (before && before.run_id !== run.id)
      throw new ApiError(
        'invalid_request',
        `The number ${seq_id} is that of another sampling session. Take one that this session has not used.`,
      )
    if (before?.folder) await this.removeWeights(before)
    await use((call) => call('save_weights', { adapter: run.id, path: path.join(dataDir, folder) }))
    const size_bytes = await bytesOfFolder(path.join(dataDir, folder))
    if (before) await store.updateSampler(db, id, { folder, size_bytes })
    else
      await this.insert({ id, session_id, account_id, base_model_id, model_name, run_id: run.id, folder, size_bytes })
    for (const old of (await store.ephemeralSamplers(db, run.id)).slice(ephemeralMax)) await this.removeWeights(old)
    return id
  }

  async require(account_id: string, id: string): Promise<store.SamplerRow> {
    const row = await store.findSampler(this.options.db, account_id, id)
    if (!row) throw new ApiError('not_found', `There is no sampling session '${id.slice(0, 200)}'.`)
    return row
  }

  async get(account_id: string, id: string) {
    const { model_name, model_path } = await this.require(account_id, id)
    return { sampler_id: id, base_model: model_name, model_path }
  }

  /** The number of one more client of a sampler. */
  async join(account_id: string, id: string): Promise<number> {
    const { db, sessions } = this.options
    return await db.transaction().execute(async (trx) => {
      const row = await store.findSampler(trx, account_id, id)
      if (!row) throw new ApiError('not_found', `There is no sampling session '${id.slice(0, 200)}'.`)
      await sessions.require(account_id, row.session_id)
      await store.updateSampler(trx, id, { clients: row.clients + 1 })
      return row.clients + 1
    })
  }

  /** Begins a request. Returns its id and those of its samples. */
  async sample(caller: Requester, body: Sample) {
    const { futures } = this.options
    const { account_id } = caller
    const prompt = promptOf(body)
    const source = await this.sourceOf(account_id, body)
    const request_id = body.sampling_session_id
      ? `${source.id}:${body.seq_id ?? newId('req')}`
      : `${source.id}:${newId('req')}`
    const group = `${source.id}#${Math.floor((body.seq_id ?? 0) / clientSpan)}`
    futures.begin(account_id, request_id, (handle) => this.work(caller, source, prompt, body, request_id, handle), {
      group,
      bytes: 8 * prompt.length,
      watch: caller.watch,
    })
    const sample_sequence_ids = Array.from({ length: body.num_samples }, (_, at) => `${request_id}:${at}`)
    return { request_id, sample_sequence_ids }
  }

  /** The group that the requests of a client of a sampler are polled by. */
  groupOf = (sampler_id: string, client: number) => `${sampler_id}#${client}`

  /** Deletes the weights without a name of a session. */
  async end(session_id: string): Promise<void> {
    for (const row of await store.samplersOfSession(this.options.db, session_id))
      if (row.folder !== null) await this.removeWeights(row)
  }

  private async removeWeights(row: store.SamplerRow): Promise<void> {
    const { db, dataDir, pools } = this.options
    await store.updateSampler(db, row.id, { folder: null, size_bytes: 0 })
    await pools.unload(await this.targetOfWeights(row, row.folder!)).catch(() => {})
    await rm(path.join(dataDir, row.folder!), { recursive: true, force: true })
  }

  private async work(
    caller: Requester,
    source: Source,
    prompt: number[],
    body: Sample,
    request_id: string,
    handle: FutureHandle,
  ): Promise<FutureResult> {
    const { account_id } = caller
    return await this.inTurn(
      account_id,
      async () => {
        const release = await waitForSlot(this.options.acquireSlot, account_id, handle)
        try {
          return await this.withSamples(account_id, body.num_samples, handle.signal, () => {
            handle.waits({ state: 'active' })
            return this.askUntilTaken(caller, source, prompt, body, request_id, handle)
          })
        } finally {
          release()
        }
      },
      handle.signal,
    )
  }

  /** Works once the engine may have so many more samples of the account. */
  private async withSamples<T>(
    account_id: string,
    count: number,
    signal: AbortSignal,
    work: () => Promise<T>,
  ): Promise<T> {
    const own = () => this.samples.get(account_id) ?? 0
    const all = () => [...this.samples.values()].reduce((sum, one) => sum + one, 0)
    while (own() > 0 && (own() + count > samplesMax.account || all() + count > samplesMax.all))
      await new Promise<void>((resolve, reject) => {
        this.waiting.push(resolve)
        if (signal.aborted) reject(signal.reason)
        signal.addEventListener('abort', () => reject(signal.reason), { once: true })
      })
    this.samples.set(account_id, own() + count)
    try {
      return await work()
    } finally {
      const left = own() - count
      if (left > 0) this.samples.set(account_id, left)
      else this.samples.delete(account_id)
      for (const wake of this.waiting.splice(0)) wake()
    }
  }

  /** Asks again while the engine's queue is full. */
  private async askUntilTaken(
    caller: Requester,
    source: Source,
    prompt: number[],
    body: Sample,
    request_id: string,
    handle: FutureHandle,
  ): Promise<FutureResult> {
    for (;;) {
      handle.signal.throwIfAborted()
      try {
        return await this.ask(caller, source, prompt, body, request_id, handle.signal)
      } catch (error) {
        if (!(error instanceof ApiError && error.code === 'overloaded')) throw error
        handle.waits({ state: 'paused_capacity', reason: 'the queue of the engine is full' })
        await sleep(fullWait_ms, undefined, { signal: handle.signal })
      }
    }
  }

  private async ask(
    caller: Requester,
    source: Source,
    prompt: number[],
    body: Sample,
    request_id: string,
    signal: AbortSignal,
  ): Promise<FutureResult> {
    const { engine, usage, pricing, now } = this.options
    const engine_request = newId('req')
    const record = sampleRecorder({ usage, prices: pricing(source.base_model_id), now }, caller, source, request_id)
    const headers = { 'x-tunery-account': caller.account_id, 'x-request-id': engine_request }
    const post = async () => {
      const { response } = await engine.post(
        source.target,
        '/internal/sample',
        (model) => JSON.stringify({ model, ...engineFields(prompt, body, this.maxTokens(source, prompt, body)) }),
        headers,
        signal,
      )
      return { status: response.status, text: (await readAll(response)).toString('utf8') }
    }
    const { status, text } = await post().catch(async (error) => {
      // What was computed of a cancelled request counts, as that of a client who hangs up.
      const used = signal.aborted ? await engine.abortedUsage(engine_request).catch(() => undefined) : undefined
      if (used) record('client_left', used)
      throw error
    })
    if (status !== 200) throw engineError(status, text)
    const sampled = Sampled.parse(JSON.parse(text))
    const { prompt_tokens, completion_tokens, prompt_tokens_details } = sampled.usage
    record('complete', { prompt_tokens, completion_tokens, cached_tokens: prompt_tokens_details?.cached_tokens ?? 0 })
    const k = { sampled: body.topk_sample_logprobs, prompt: body.topk_prompt_logprobs }
    return { kind: 'message', bytes: writeSampleOutput(outputOf(sampled, body), k) }
  }

  private maxTokens({ base_model_id }: Source, prompt: number[], { sampling_params }: Sample): number {
    return sampling_params.max_tokens ?? Math.max(1, this.options.hub.get(base_model_id).context_length - prompt.length)
  }

  private async sourceOf(account_id: string, body: Sample): Promise<Source> {
    const { sessions } = this.options
    if (!body.sampling_session_id) return await this.source(account_id, newId('tns'), body)
    const row = await this.require(account_id, body.sampling_session_id)
    await sessions.require(account_id, row.session_id)
    if (row.run_id === null)
      return await this.source(account_id, row.id, { base_model: row.base_model_id, model_path: row.model_path })
    if (row.folder === null)
      throw new ApiError(
        'not_found',
        `These weights were deleted: the last ${ephemeralMax} of a run are kept. Save them with a name instead ` +
          '(save_weights_for_sampler).',
      )
    const target = await this.targetOfWeights(row, row.folder)
    return { id: row.id, base_model_id: row.base_model_id, model: row.model_name, model_id: row.base_model_id, target }
  }

  private async source(
    account_id: string,
    id: string,
    { base_model, model_path }: Pick<CreateSampler, 'base_model' | 'model_path'>,
  ): Promise<Source> {
    const { inference, bases } = this.options
    if (!model_path) {
      const base = bases.resolve(requireBase(base_model))
      const target = await inference.target(account_id, base)
      return { id, base_model_id: base, model: base, model_id: base, target }
    }
    const checkpoint = await this.samplerCheckpoint(account_id, model_path)
    const model_id = checkpoint.model_id!
    const { base_model_id } = (await store.findRunUnscoped(this.options.db, checkpoint.run_id))!
    const target = await inference.target(checkpoint.account_id, model_id)
    return { id, base_model_id, model: model_id, model_id, target }
  }

  private async samplerCheckpoint(account_id: string, model_path: string): Promise<store.CheckpointRow> {
    const at = parsePath(model_path)
    if (at.kind !== 'sampler')
      throw new ApiError(
        'invalid_request',
        `${model_path.slice(0, 300)} cannot be sampled from: save_weights_for_sampler makes what can ` +
          '(tinker://RUN/sampler_weights/NAME).',
      )
    return await this.options.checkpoints.find(account_id, at)
  }

  private async baseOf(account_id: string, { base_model, model_path }: CreateSampler) {
    const { bases, db } = this.options
    if (!model_path)
      return { base_model_id: bases.resolve(requireBase(base_model)), model_name: requireBase(base_model) }
    const { run_id } = await this.samplerCheckpoint(account_id, model_path)
    const { base_model_id, model_name } = (await store.findRunUnscoped(db, run_id))!
    return { base_model_id, model_name }
  }

  private async targetOfWeights({ id, account_id, base_model_id }: store.SamplerRow, folder: string): Promise<Target> {
    const { inference, dataDir } = this.options
    const { base } = await inference.target(account_id, base_model_id)
    return { base, adapter: { id, gguf: path.join(dataDir, folder, 'adapter.gguf') } }
  }

  private async insert(row: {
    id: string
    session_id: string
    account_id: string
    base_model_id: string
    model_name: string
    model_path?: string | null | undefined
    run_id?: string
    folder?: string
    size_bytes?: number
  }): Promise<void> {
    const { db, now } = this.options
    await store.insertSampler(db, {
      ...row,
      model_path: row.model_path ?? null,
      run_id: row.run_id ?? null,
      folder: row.folder ?? null,
      clients: 0,
      created_at: now(),
    })
  }
}

function requireBase(base_model: string | null | undefined): string {
  if (!base_model)
    throw new ApiError('invalid_request', "Say what to sample from: 'base_model', 'model_path' or a sampling session.")
  return base_model
}
