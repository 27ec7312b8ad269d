import type http from 'node:http'
import type { z } from 'zod'
import type { ChatRequest } from '../../contract/chat.ts'
import { ApiError } from '../../contract/errors.ts'
import type { ModelList } from '../../contract/inference.ts'
import type { Comparison } from '../../contract/models.ts'
import type { Hub } from '../hub/service.ts'
import type { Origin, ServableModel, TunedModels } from '../tuning/models.ts'
import { createTurn } from '../turn.ts'
import { compare, parseScores, readProbe } from './compare.ts'
import { type EngineClient, engineError, readAll, type Target } from './engine-client.ts'

const scoreTimeout_ms = 300_000

/** The names that another feature gives to models; deployments registers itself here. */
export interface Names {
  find(account_id: string, name: string): Promise<{ model: string } | undefined>
  list(account_id: string): Promise<{ name: string; created_at: number }[]>
}

export interface Inference {
  /** Relays a chat request to the engine; resolves with the head of its answer, whatever its status. */
  chat(account_id: string, request: ChatRequest, signal: AbortSignal): Promise<http.IncomingMessage>
  models(account_id: string): Promise<z.input<typeof ModelList>>
  /** What a model id stands for, names of deployments aside. Throws model_not_found or model_not_available. */
  target(account_id: string, model: string): Promise<Target>
  /** The base that a model id stands on, whether or not its weights are here. */
  baseId(account_id: string, model: string): Promise<string>
  /** Loads a model, so that its first request does not wait. */
  load(target: Target): Promise<void>
  /** Throws model_disagrees where what the engine serves of a model is not what was trained. */
  requireTrusted(account_id: string, model: string): Promise<void>
  useNames(names: Names): void
}

export function createInference({ hub, models, engine }: { hub: Hub; models: TunedModels; engine: EngineClient }): Inference {
  let names: Names | undefined

  const targetOf = (tuned: ServableModel): Target =>
    tuned.kind === 'model' ? { base: tuned } : { base: tuned.parent ?? hub.local(tuned.base_model_id), adapter: tuned }

  async function scores(target: Target, rows: object[]) {
    const timeout = AbortSignal.timeout(scoreTimeout_ms)
    const answer = await engine.post(target, '/internal/score', { rows }, {}, timeout).catch((error) => {
      throw timeout.aborted
        ? new ApiError('engine_unavailable', 'Comparing the model with its training takes too long just now. Try again in a moment.')
        : error
    })
    const text = await readAll(answer)
    if (answer.statusCode !== 200) throw engineError(answer.statusCode ?? 500, text)
    return parseScores(text)
  }

  async function comparison(tuned: ServableModel, origin: Origin): Promise<Comparison | undefined> {
    const probe = await readProbe(tuned.probe)
    if (probe.rows.length === 0) return undefined
    const rows = probe.rows.map(({ prompt, tokens, targets }) => ({ prompt, tokens, targets }))
    const found = compare(probe, await scores(targetOf(tuned), rows), await scores(origin, rows))
    // An adapter may stay for its first request; whole weights are too large to hold for a model that may never be asked.
    if (tuned.kind === 'model') await engine.unload({ base: tuned }).catch(() => {})
    return found
  }
  /** One comparison of a model at a time, and one of all: each has a context of its own in the engine. */
  const underWay = new Map<string, Promise<Comparison | undefined>>()
  const inTurn = createTurn()
  models.compareWith((tuned, origin) => {
    const same = underWay.get(tuned.id)
    if (same) return same
    const mine = inTurn(() => comparison(tuned, origin)).finally(() => underWay.delete(tuned.id))
    underWay.set(tuned.id, mine)
    return mine
  })
  models.onDeleted((tuned) => void engine.unload(tuned.kind === 'model' ? { base: tuned } : { base: tuned, adapter: tuned }).catch(() => {}))

  async function target(account_id: string, model: string): Promise<Target> {
    const tuned = await models.find(account_id, model)
    if (tuned) return targetOf(tuned)
    if (hub.has(model)) return { base: hub.local(model) }
    throw new ApiError('model_not_found', `There is no model or deployment '${model}'. GET /v1/models lists those that can be called.`, { param: 'model' })
  }

  return {
    target,
    useNames: (given) => {
      names = given
    },
    baseId: async (account_id, model) => (await models.find(account_id, model))?.base_model_id ?? model,
    load: (wanted) => engine.load(wanted),

    async requireTrusted(account_id, model) {
      if (!(await models.find(account_id, model))) return
      const found = await models.compared(account_id, model)
      if (found?.problem) throw new ApiError('model_disagrees', `'${model}' is not deployed. ${found.problem}`, { details: { ...found }, param: 'model' })
    },

    async chat(account_id, request, signal) {
      const named = await names?.find(account_id, request.model)
      const wanted = await target(account_id, named?.model ?? request.model)
      const headers = { 'x-served-model-name': request.model, 'x-tunery-account': account_id }
      return engine.post(wanted, '/v1/chat/completions', request, headers, signal)
    },

    async models(account_id) {
      const card = (id: string, created_at: number, owned_by: string) => ({
        id,
        object: 'model' as const,
        created: Math.floor(created_at / 1000),
        owned_by,
        status: 'not_loaded' as const,
      })
      const bases = hub.list().filter((model) => model.weights.available)
      const deployed = (await names?.list(account_id)) ?? []
      const tuned = await models.all(account_id)
      return {
        object: 'list',
        data: [
          ...deployed.map(({ name, created_at }) => card(name, created_at, account_id)),
          ...tuned.map(({ id, created_at }) => card(id, created_at, account_id)),
          ...bases.map(({ id }) => card(id, 0, id.split('/')[0]!)),
        ],
      }
    },
  }
}
