import type { z } from 'zod'
import { ApiError } from '../../contract/errors.ts'
import type { ModelCard, ModelList } from '../../contract/inference.ts'
import type { TunedModels } from '../fine-tuning/models/registry.ts'
import type { Caller } from '../http/auth.ts'
import type { Hub } from '../hub/service.ts'
import type { Plans } from '../plans.ts'
import type { UsageKind } from '../usage/journal.ts'
import type { Usage } from '../usage/service.ts'
import type { EngineClient } from './engine/client.ts'
import { compareModels, type Scoring } from './fidelity/adapter-verification.ts'
import { type Meter, startMeter } from './gateway/meter.ts'
import { createResolver, type Names } from './gateway/resolve.ts'
import type { Copies } from './merged-adapters/manager.ts'
import type { Served } from './replicas/pool.ts'
import type { Pools } from './replicas/pools.ts'
import type { Target } from './replicas/replica.ts'

/** What is asked of a model, and where below the base address. */
export interface Operation {
  kind: UsageKind
  path: string
}

export interface Asked {
  caller: Caller
  request_id: string
  body: { model: string } & Record<string, unknown>
  /** The body as the client wrote it; undefined where it was put together here. */
  text: string | undefined
  stream: boolean
}

export interface Inference {
  /**
   * Has a request answered; resolves with the whole answer or with the beginning of its stream, to be released and
   * metered by who takes it. Throws an ApiError where there is no answer.
   */
  answer(operation: Operation, asked: Asked, signal: AbortSignal): Promise<{ served: Served; meter: Meter }>
  models(account_id: string): Promise<z.input<typeof ModelList>>
  model(account_id: string, name: string): Promise<z.input<typeof ModelCard>>
  /**
   * What a model id stands for, names of deployments aside. Throws model_not_found, model_not_available, or
   * model_not_callable.
   */
  target(account_id: string, model: string): Promise<Target>
  /** Whether this is the id of a base, of the hub or of an upstream. */
  isBase(model: string): boolean
  /** The base that a model id stands on, whether or not its weights are here. */
  baseId(account_id: string, model: string): Promise<string>
  /** Loads a model, so that its first request does not wait. */
  load(target: Target): Promise<void>
  /** Throws model_disagrees where what the engine serves of a model is not what was trained. */
  requireTrusted(account_id: string, model: string): Promise<void>
  useNames(names: Names): void
  /** What names stand for has changed: the next request sees it. */
  namesChanged(): void
  /** Resolves when everything that was used has been taken down; while the engine still runs, as it is asked. */
  close(): Promise<void>
}

interface Options {
  hub: Hub
  models: TunedModels
  engine: EngineClient
  pools: Pools
  scores: Scoring
  copies: Copies
  usage: Usage
  pricing: Plans['pricing']
}

export function createInference({ hub, models, engine, pools, scores, copies, usage, pricing }: Options): Inference {
  /** What is still to be heard of what those used who have left. */
  const leaving = new Set<Promise<void>>()
  const resolver = createResolver({ hub, models, pools })
  const journal: Pick<Usage, 'record'> = {
    record(record) {
      usage.record(record)
      copies.used(record)
    },
  }
  compareModels(models, engine, scores)
  models.onDeleted((tuned) => {
    const own = { id: tuned.id, gguf: tuned.gguf }
    void pools.unload(tuned.kind === 'model' ? { base: own } : { base: { id: tuned.base_model_id }, adapter: own })
  })

  async function cards(account_id: string): Promise<z.input<typeof ModelCard>[]> {
    const tuned = await models.all(account_id)
    const targets = new Map(tuned.map((model) => [model.id, model]))
    const statusOf = (id: string) => {
      const known = targets.get(id)
      try {
        return pools.status(
          known ? (copies.of(id) ?? resolver.targetOf(known)) : { base: { id, ...hub.localOrUndefined(id) } },
        )
      } catch {
        // The weights that it stands on are not here any more.
        return 'not_loaded' as const
      }
    }
    const card = (id: string, model: string, created_at: number, owned_by: string) => ({
      id,
      object: 'model' as const,
      created: Math.floor(created_at / 1000),
      owned_by,
      status: statusOf(model),
    })
    const local = hub.list().filter((model) => model.weights.available)
    const bases = new Set([...local.map(({ id }) => id), ...pools.upstreamModels()])
    const deployed = (await resolver.names()?.list(account_id)) ?? []
    return [
      ...deployed.map(({ name, model, created_at }) => card(name, model, created_at, account_id)),
      ...tuned.map(({ id, created_at }) => card(id, id, created_at, account_id)),
      ...[...bases].map((id) => card(id, id, 0, id.split('/')[0]!)),
    ]
  }

  return {
    target: resolver.target,
    isBase: resolver.isBase,
    useNames: resolver.useNames,
    namesChanged: resolver.changed,
    baseId: async (account_id, model) => (await models.find(account_id, model))?.base_model_id ?? model,
    load: pools.load,
    async close() {
      await copies.close()
      await Promise.allSettled(leaving)
    },

    async requireTrusted(account_id, model) {
      if (!(await models.find(account_id, model))) return
      const found = await models.compared(account_id, model)
      if (found?.problem)
        throw new ApiError('model_disagrees', `'${model}' is not deployed. ${found.problem}`, {
          details: { ...found },
          param: 'model',
        })
    },

    async answer({ kind, path }, { caller, request_id, body, text, stream }, signal) {
      const { account_id, key_id } = caller
      const { model } = body
      const { model_id, base_model_id, target } = await resolver.resolve(account_id, model)
      const meter = startMeter(
        journal,
        { request_id, account_id, key_id, model, model_id, kind },
        pricing(base_model_id),
        leaving,
      )
      try {
        const attempt = (target: Target) =>
          pools.run({ request_id, account_id, kind, path, model, target, body, text, stream }, signal)
        return { served: await copies.run(account_id, target, attempt), meter }
      } catch (error) {
        // Whose client left before there was an answer has used the engine all the same.
        if (signal.aborted) meter.endLater(engine.usageOfLeft(request_id), undefined)
        throw error
      }
    },

    models: async (account_id) => ({ object: 'list', data: await cards(account_id) }),

    async model(account_id, name) {
      const found = (await cards(account_id)).find(({ id }) => id === name)
      if (!found)
        throw new ApiError(
          'model_not_found',
          `There is no model or deployment '${name}'. GET /v1/models lists those that can be called.`,
          { param: 'model' },
        )
      return found
    },
  }
}
