import type { FastifyInstance, FastifyReply } from 'fastify'
import { type ChatRequest, chatBatch, chatCompletions } from '../../../contract/chat.ts'
import { type CompletionRequest, completions } from '../../../contract/completions.ts'
import { type EmbeddingsRequest, embeddings } from '../../../contract/embeddings.ts'
import { ApiError } from '../../../contract/errors.ts'
import { getCallableModel, listCallableModels } from '../../../contract/inference.ts'
import { type Limits, refusal } from '../../http/limits.ts'
import { answered, type Call, mount } from '../../http/mount.ts'
import type { Inference, Operation } from '../service.ts'
import { answerBatch } from './batch.ts'
import { relayStream, serverTiming, takeWhole } from './relay.ts'
import { openStream } from './sse-response.ts'

const chat: Operation = { kind: 'chat', path: '/chat/completions' }
const completion: Operation = { kind: 'completion', path: '/completions' }
const embedding: Operation = { kind: 'embedding', path: '/embeddings' }

/** Made once: an error for every client that leaves would cost its stack each time. */
const left = new Error('the client left')

export function inferenceRoutes(
  app: FastifyInstance,
  inference: Inference,
  limits: Limits,
  cutting: AbortSignal,
): void {
  const underWay = new Set<AbortController>()
  cutting.addEventListener('abort', () => {
    for (const each of underWay) each.abort()
  })

  /** Aborts when the client hangs up, which frees its place in the engine, and when the time to stop is over. */
  function presence(reply: FastifyReply): AbortSignal {
    const gone = new AbortController()
    underWay.add(gone)
    reply.raw.once('close', () => {
      underWay.delete(gone)
      if (!reply.raw.writableFinished) gone.abort(left)
    })
    return gone.signal
  }
  const asStopping = (error: unknown) => {
    throw cutting.aborted
      ? new ApiError('shutting_down', 'The service is stopping. Send the request once more in a moment.')
      : error
  }

  type AnyCall = Pick<Call<typeof chatCompletions>, 'caller' | 'request' | 'reply'> & {
    body: ChatRequest | CompletionRequest | EmbeddingsRequest
  }
  async function answer(call: AnyCall, operation: Operation): Promise<typeof answered> {
    const { caller, request, reply } = call
    const signal = presence(reply)
    const stream = 'stream' in call.body && call.body.stream === true
    const asked = { caller, request_id: request.id, body: call.body, text: request.bodyText ?? undefined, stream }
    if (stream) {
      const opening = openStream(reply)
      try {
        const { served, meter } = await inference.answer(operation, asked, signal).catch(asStopping)
        const options = { ...(call.body as ChatRequest).stream_options }
        // A long answer need not hold what it was asked with, and all of these live as long as it does.
        request.bodyText = null
        request.body = undefined
        Object.assign(call, { body: undefined })
        Object.assign(asked, { body: undefined, text: undefined })
        await relayStream(served, opening, meter, options, cutting)
      } catch (error) {
        opening.fail(error)
      }
      return answered
    }
    const { served, meter } = await inference.answer(operation, asked, signal).catch(asStopping)
    reply
      .header('server-timing', serverTiming(served))
      .type('application/json; charset=utf-8')
      .send(takeWhole(served, meter).bytes)
    return answered
  }

  mount(app, listCallableModels, ({ caller }) => inference.models(caller.account_id))
  mount(app, getCallableModel, ({ caller, params }) => inference.model(caller.account_id, params.model_id))
  mount(app, chatCompletions, (call) => answer(call, chat))
  mount(app, completions, (call) => answer(call, completion))
  mount(app, embeddings, (call) => answer(call, embedding))
  mount(app, chatBatch, async ({ caller, body, request, reply }) => {
    const signal = presence(reply)
    const one = async (each: ChatRequest, index: number) => {
      const asked = { caller, request_id: `${request.id}.${index}`, body: each, text: undefined, stream: false }
      const { served, meter } = await inference.answer(chat, asked, signal)
      return takeWhole(served, meter)
    }
    const own = {
      async admit() {
        const { refused } = await limits.admit(caller)
        if (refused) throw refusal(refused)
      },
      slot: () => limits.slot(caller),
    }
    const onFault = (error: unknown) => request.log.error({ err: error }, 'a request of a batch failed')
    reply
      .type('application/json; charset=utf-8')
      .send(await answerBatch(body, signal, own, one, onFault).catch(asStopping))
    return answered
  })
}
