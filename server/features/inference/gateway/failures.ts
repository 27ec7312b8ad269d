// Counts requests for a model that failed before their answer began, by the name that they asked for.
import type { FastifyInstance, FastifyRequest } from 'fastify'
import { chatCompletions } from '../../../../contract/chat.ts'
import { completions } from '../../../../contract/completions.ts'
import { embeddings } from '../../../../contract/embeddings.ts'
import { ApiError } from '../../../../contract/errors.ts'
import { createResponse } from '../../../../contract/responses.ts'
import type { Route } from '../../../../contract/route.ts'
import { failureKind, type Usage } from '../../usage/index.ts'
import type { Inference } from '../service.ts'

const counted: ReadonlySet<Route | undefined> = new Set<Route>([
  chatCompletions,
  completions,
  embeddings,
  createResponse,
])
const nameLength_max = 256

export interface FailureCounter {
  /** Counts the failure of a stream that has begun with keepalives, whose status says nothing. */
  countLate(account_id: string, model: string, error: unknown): void
}

/** Adds a hook that counts the failures of all routes with one answer. */
export function countFailures(
  app: FastifyInstance,
  inference: Pick<Inference, 'modelId'>,
  usage: Pick<Usage, 'recordFailure'>,
): FailureCounter {
  async function count(account_id: string, model: string, status: number): Promise<void> {
    try {
      await inference.modelId(account_id, model)
    } catch (error) {
      // Only names that exist: nobody can fill the table with others.
      if (!(error instanceof ApiError) || error.code === 'model_not_found') return
    }
    usage.recordFailure(account_id, model, failureKind(status))
  }
  app.addHook('onResponse', (request, reply, done) => {
    done()
    if (reply.statusCode < 400 || !request.caller || !counted.has(request.routeOptions.config.route)) return
    const model = modelIn(request)
    if (model !== undefined) void count(request.caller.account_id, model, reply.statusCode)
  })
  return {
    countLate: (account_id, model, error) =>
      void count(account_id, model, error instanceof ApiError ? error.status : 500),
  }
}

function modelIn({ body }: FastifyRequest): string | undefined {
  const model = (body as { model?: unknown } | null | undefined)?.model
  return typeof model === 'string' && model.length <= nameLength_max ? model : undefined
}
