// HTTP client of the engine. Tracks which models the running instance has loaded, and loads them on demand.
import { once as nextEvent } from 'node:events'
import path from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Logger } from 'pino'
import { ApiError, type ErrorBody, type ErrorCode, errorCodes } from '../../../../contract/errors.ts'
import { abortable } from '../../../../lib/abortable.ts'
import { runPeriodically } from '../../../../lib/periodic.ts'
import type { Hold } from '../../../platform/storage/objects/index.ts'
import type { Span } from '../../../platform/telemetry/tracing.ts'
import type { Projector } from '../../hub/index.ts'
import { readAll, send } from '../http-client/client.ts'
import { NoResponse } from '../http-client/connection-pool.ts'
import type { HttpResponse } from '../http-client/response.ts'
import { LoadFailure, type ModelStatus, ReplicaFailure, type Target } from '../requests/replica.ts'
import { type TokenCounts, toTokenCounts } from '../requests/usage-scanner.ts'
import type { EngineInstance, EngineProcess } from './process.ts'
import { filesHere, type WeightFiles } from './weight-files.ts'

interface EngineResponse {
  response: HttpResponse
  /** How long the request waited for the engine to start and the model to load. */
  load_ms: number
}

/** A base or adapter that an engine instance has loaded, or is loading. */
interface LoadedModel {
  done: Promise<void>
  status: 'loading' | 'loaded'
  target: Target
  /** Requests in progress on it; requests on an adapter count on its base too. */
  references: number
  used_at: number
  /** Keeps its files on this disk. */
  hold?: Hold
}

/** The engine died before it received the request, so the next instance can get it. */
class NotStarted extends ReplicaFailure {}
const wrongProjector =
  'The file with which this model reads pictures (its projector, mmproj.gguf) is missing, damaged or that of another ' +
  'model. Restore that file from a backup. That of a base also comes back when the folder of the base is removed ' +
  'from the models folder and the base is added again; one that was trained, when the model is trained again.'
/** How long the exit event may take after a refused connection. */
const exitNotice_ms = 2000
/** Beside an adapter's file: the same weights in PEFT's format. */
const checkpointFolder = 'adapter'
/** For what an operator looks at. */
const read_ms = 3000
const neverAborts = new AbortController().signal
/** Waits between lookups: the engine notices a disconnect shortly after the connection closes. */
const abortedUsagePolls_ms = [5, 20, 50, 100, 300]

export class EngineClient {
  private readonly engine: EngineProcess
  private readonly log: Logger
  private readonly files: WeightFiles
  private readonly modelsByInstance = new WeakMap<EngineInstance, Map<string, LoadedModel>>()

  constructor(engine: EngineProcess, log: Logger, files: WeightFiles = filesHere) {
    this.engine = engine
    this.log = log
    this.files = files
  }

  /** Loads the target unless it is loaded. */
  load(target: Target): Promise<void> {
    return this.withEngine(async (instance) => (await this.acquire(instance, target, neverAborts))(), neverAborts)
  }

  /** Unloads the target's adapter, or its base if it has no adapter. */
  async unload({ base, adapter }: Target): Promise<void> {
    const instance = this.engine.current()
    if (instance) await this.unloadFrom(instance, (adapter ?? base).id)
  }

  status({ base, adapter }: Target): ModelStatus {
    const instance = this.engine.current()
    const models = instance && this.modelsByInstance.get(instance)
    const parts = adapter ? [base.id, adapter.id] : [base.id]
    const states = parts.map((name) => models?.get(name)?.status ?? 'not_loaded')
    return states.every((state) => state === 'loaded')
      ? 'loaded'
      : states.includes('loading')
        ? 'loading'
        : 'not_loaded'
  }

  /**
   * Loads the target if needed, then sends the request. `body` gets the target's name in the engine. Throws a
   * ReplicaFailure if the engine dies.
   */
  post(
    target: Target,
    path: string,
    body: (name: string) => string,
    headers: Record<string, string>,
    signal: AbortSignal,
    span?: Span | null,
  ): Promise<EngineResponse> {
    return this.withEngine(async (instance) => {
      const started_at = performance.now()
      const name = (target.adapter ?? target.base).id
      for (let isRetry = false; ; isRetry = true) {
        const release = await this.acquire(instance, target, signal, span)
        const load_ms = performance.now() - started_at
        try {
          const response = await postTo(instance, path, body(name), headers, signal)
          response.once('close', release)
          if (response.status !== 404 || isRetry) return { response, load_ms }
          // The engine evicted the model: load it again.
          response.resume()
          for (const model of [name, target.base.id]) this.modelsIn(instance).delete(model)
        } catch (error) {
          release()
          throw error
        }
      }
    }, signal)
  }

  /** Tokens used by a request whose client disconnected; undefined if the engine does not know the request. */
  async abortedUsage(request_id: string): Promise<TokenCounts | undefined> {
    for (const wait_ms of abortedUsagePolls_ms) {
      await sleep(wait_ms)
      const instance = this.engine.current()
      if (!instance) return undefined
      const response = await send(
        instance.pool,
        { method: 'GET', path: `/internal/usage/${encodeURIComponent(request_id)}` },
        instance.ended,
      ).catch(() => undefined)
      if (!response) return undefined
      const text = (await readAll(response).catch(() => Buffer.of())).toString('utf8')
      if (response.status === 200 && text !== '') return toTokenCounts(JSON.parse(text))
    }
    return undefined
  }

  /** The body of a GET of a running engine; undefined if none runs, or it does not answer in time. */
  async read(path: string): Promise<string | undefined> {
    const instance = this.engine.current()
    if (!instance) return undefined
    const inTime = AbortSignal.any([instance.ended, AbortSignal.timeout(read_ms)])
    try {
      const response = await send(instance.pool, { method: 'GET', path }, inTime)
      const text = (await readAll(response)).toString('utf8')
      return response.status === 200 ? text : undefined
    } catch {
      return undefined
    }
  }

  /** Makes a running engine leave this share (0 to 1) of CPU time to other processes for the next `for_ms`. */
  async yieldCores(share: number, for_ms: number): Promise<void> {
    const instance = this.engine.current()
    if (instance) await postAndRead(instance, '/internal/leave_cores', JSON.stringify({ share, for_ms }))
  }

  /** Whether the running engine has unfinished requests or loads. */
  isBusy(): boolean {
    const instance = this.engine.current()
    return instance !== undefined && [...this.modelsIn(instance).values()].some(({ references }) => references > 0)
  }

  /** Periodically unloads models without requests for `idle_ms`. Returns a function that stops it. */
  unloadIdle(idle_ms: number): () => void {
    const task = runPeriodically(Math.min(30_000, Math.max(20, idle_ms / 2)), () =>
      this.unloadUnused(idle_ms).catch((error) => this.log.warn({ err: error }, 'an idle model could not be unloaded')),
    )
    // Not awaited: the engine may hang.
    return () => void task.close()
  }

  private modelsIn(instance: EngineInstance): Map<string, LoadedModel> {
    const existing = this.modelsByInstance.get(instance)
    if (existing) return existing
    const created = new Map<string, LoadedModel>()
    this.modelsByInstance.set(instance, created)
    return created
  }

  /** Loads a base or adapter once per instance, shared by concurrent callers; a failed load can be retried. */
  private loadOnce(
    instance: EngineInstance,
    name: string,
    target: Target,
    load: () => Promise<Hold | null>,
  ): LoadedModel {
    const models = this.modelsIn(instance)
    const existing = models.get(name)
    if (existing) return existing
    const done = load().then((hold) => {
      if (!hold) return
      if (models.get(name) !== created || instance.ended.aborted) return hold.release()
      created.hold = hold
      instance.ended.addEventListener('abort', () => releaseFiles(created), { once: true })
    })
    const created: LoadedModel = { done, status: 'loading', target, references: 0, used_at: Date.now() }
    models.set(name, created)
    created.done.then(
      () => {
        created.status = 'loaded'
      },
      () => models.get(name) === created && models.delete(name),
    )
    return created
  }

  private async command(instance: EngineInstance, path: string, body: unknown): Promise<void> {
    const { status, text } = await postAndRead(instance, path, JSON.stringify(body))
    if (status === 200) return
    // The API's caller did not write this request: its paths and parameters belong in the log only.
    this.log.error({ path, body, answer: text.slice(0, 2000) }, 'the engine refused a command')
    const error = engineError(status, text)
    if (status === 503) throw error
    throw error.param === 'projector' ? new LoadFailure(wrongProjector) : new LoadFailure()
  }

  /**
   * Loads weights that must stay on this disk meanwhile. Later the engine has them open, but not what vLLM has loaded:
   * after a crash it reads that again. `model_id`: of the tuned model that may have drafts.
   */
  private async loadFile(
    instance: EngineInstance,
    gguf: string,
    path: string,
    body: object,
    model_id: string,
  ): Promise<Hold | null> {
    const hold = await this.files.artifacts.hold([gguf])
    try {
      const drafts = await this.files.draftFile(model_id)
      await this.command(instance, path, { ...body, ...(drafts && { drafts }) })
    } catch (error) {
      hold.release()
      throw error
    }
    if ('checkpoint' in body) return hold
    hold.release()
    return null
  }

  /** Loads the target's base, then its adapter. Both count as in use until the returned `release` is called. */
  private async acquire(instance: EngineInstance, target: Target, signal: AbortSignal, span?: Span | null) {
    const { base, adapter } = target
    const { gguf, projector } = base
    if (!gguf)
      throw new ApiError('model_not_available', `The weights of '${base.id}' are not on this machine.`, {
        param: 'model',
      })
    const acquired: LoadedModel[] = []
    const release = () => {
      for (const model of acquired.splice(0)) {
        model.references--
        model.used_at = Date.now()
      }
    }
    const use = (model: LoadedModel) => {
      model.references++
      acquired.push(model)
      return model.status === 'loaded' ? undefined : traced(abortable(model.done, signal), span)
    }
    try {
      const loadedBase = this.loadOnce(instance, base.id, { base }, () => {
        const checkpoint = this.files.checkpoint?.(base.id, gguf)
        const keep_original = this.files.keepsOriginal(base.id)
        const body = { name: base.id, path: gguf, keep_original, ...(checkpoint && { checkpoint }) }
        return this.loadFile(
          instance,
          gguf,
          '/internal/load_model',
          { ...body, ...fieldsOf(projector) },
          base.merged_from ?? base.id,
        )
      })
      await use(loadedBase)
      if (adapter) {
        const projectorFields = fieldsOf(adapter.projector)
        const checkpoint = this.files.checkpoint && path.join(path.dirname(adapter.gguf), checkpointFolder)
        const names = { lora_name: adapter.id, base_model_name: base.id }
        const body = { ...names, lora_path: adapter.gguf, ...(checkpoint && { checkpoint }), ...projectorFields }
        const load = () => this.loadFile(instance, adapter.gguf, '/v1/load_lora_adapter', body, adapter.id)
        await use(this.loadOnce(instance, adapter.id, target, load))
      }
      return release
    } catch (error) {
      release()
      throw error
    }
  }

  /** Runs `work` on the running engine, and once more on the next if this one had died before the request. */
  private async withEngine<T>(work: (instance: EngineInstance) => Promise<T>, signal: AbortSignal): Promise<T> {
    const instance = this.engine.current() ?? (await abortable(this.engine.instance(), signal))
    try {
      return await work(instance)
    } catch (error) {
      if (!(error instanceof NotStarted)) throw error
      await Promise.race([
        instance.ended.aborted || nextEvent(instance.ended, 'abort'),
        sleep(exitNotice_ms, undefined, { ref: false }),
      ])
      return work(await abortable(this.engine.instance(), signal))
    }
  }

  private async unloadFrom(instance: EngineInstance, name: string): Promise<void> {
    const models = this.modelsIn(instance)
    const model = models.get(name)
    if (!model) return
    models.delete(name)
    releaseFiles(model)
    await this.command(
      instance,
      model.target.adapter ? '/v1/unload_lora_adapter' : '/internal/unload_model',
      model.target.adapter ? { lora_name: name } : { name },
    )
  }

  private async unloadUnused(idle_ms: number): Promise<void> {
    const instance = this.engine.current()
    if (!instance) return
    const models = this.modelsIn(instance)
    const idle = ({ references, used_at, status }: LoadedModel) =>
      references === 0 && status === 'loaded' && Date.now() - used_at >= idle_ms
    for (const [name, model] of models) if (model.target.adapter && idle(model)) await this.unloadFrom(instance, name)
    for (const [name, model] of models) {
      const hasAdapters = [...models.values()].some(({ target }) => target.adapter && target.base.id === name)
      if (!model.target.adapter && !hasAdapters && idle(model)) {
        this.log.info({ model: name }, 'an idle model is unloaded')
        await this.unloadFrom(instance, name)
      }
    }
  }
}

async function postAndRead(instance: EngineInstance, path: string, payload: string) {
  const response = await postTo(instance, path, payload, {}, instance.ended)
  return {
    status: response.status,
    text: (await readAll(response).catch((error) => throwUnavailable(error))).toString('utf8'),
  }
}

function releaseFiles(model: LoadedModel): void {
  model.hold?.release()
  delete model.hold
}

const fieldsOf = (projector: Projector | null | undefined) =>
  projector ? { projector: projector.path, projector_sha256: projector.sha256 } : {}

/** A load, or the wait for one that another request has begun. */
async function traced(load: Promise<void>, span: Span | null | undefined): Promise<void> {
  const loading = span?.child('load model')
  try {
    await load
    loading?.end()
  } catch (error) {
    loading?.end({ error })
    throw error
  }
}

async function postTo(
  instance: EngineInstance,
  path: string,
  payload: string,
  headers: Record<string, string>,
  signal: AbortSignal,
): Promise<HttpResponse> {
  try {
    return await send(instance.pool, { method: 'POST', path, headers, payload }, signal)
  } catch (error) {
    // An abort's own error passes unchanged; a dead engine becomes engine_unavailable.
    if (signal.aborted && !instance.ended.aborted) throw error
    return throwUnavailable(error)
  }
}

function throwUnavailable(error: unknown): never {
  if (!(error instanceof NoResponse)) throw error
  const message =
    `The engine ended while it worked on this request (${error.message}). ` +
    'It is being started again: try once more.'
  throw error.mayHaveStarted
    ? new ReplicaFailure('engine_unavailable', message, { lost: true })
    : new NotStarted('engine_unavailable', message)
}

/** Converts an error response of the engine, which has the API's own shape. */
export function engineError(status: number, text: string): ApiError {
  try {
    const { error } = JSON.parse(text) as ErrorBody
    return new ApiError(codeOf(error.code), error.message, {
      ...(error.details && { details: error.details }),
      ...(error.param && { param: error.param }),
    })
  } catch {
    return new ApiError('engine_failed', `The engine answered ${status} without a reason.`)
  }
}

function codeOf(code: string): ErrorCode {
  if (!(code in errorCodes)) throw new Error('unknown error code')
  return code as ErrorCode
}
