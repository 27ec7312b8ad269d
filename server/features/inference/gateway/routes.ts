import type { FastifyInstance } from 'fastify'
import { type ChatRequest, chatBatch, chatCompletions } from '../../../../contract/chat.ts'
import { type CompletionRequest, completions } from '../../../../contract/completions.ts'
import { type EmbeddingsRequest, embeddings } from '../../../../contract/embeddings.ts'
import { type AnswerWarning, getCallableModel, listCallableModels } from '../../../../contract/inference.ts'
import { type Limits, rateLimitError } from '../../../platform/http/limits.ts'
import { answered, type Call, mount } from '../../../platform/http/mount.ts'
import type { StoredCompletions } from '../../stored-completions/index.ts'
import type { Inference, Operation } from '../service.ts'
import type { Aborts } from './aborts.ts'
import { answerBatch } from './batch.ts'
import type { FailureCounter } from './failures.ts'
import { answerHeaders, meterFullResponse, relayStream, warningHeader } from './relay.ts'
import { openSseResponse, startThrough } from './sse-response.ts'
import { createStoredStream } from './stored-stream.ts'

export const chat: Operation = { kind: 'chat', path: '/chat/completions' }
const completion: Operation = { kind: 'completion', path: '/completions' }
const embedding: Operation = { kind: 'embedding', path: '/embeddings' }

/** What has the body of a request, parsed or as text. */
interface BodyHolder {
  body?: unknown
  bodyText?: string | null
  text?: string | undefined
}

/**
 * Lets the memory of a body go while its answer is streamed, for which all that has it stays. None may read it again.
 */
function freeBody(...holders: BodyHolder[]): void {
  for (const holder of holders) {
    holder.body = undefined
    if ('bodyText' in holder) holder.bodyText = null
    if ('text' in holder) holder.text = undefined
  }
}

interface Needs {
  inference: Inference
  stored: Pick<StoredCompletions, 'keeps' | 'save'>
  limits: Limits
  aborts: Aborts
  failures: FailureCounter
}

export function inferenceRoutes(app: FastifyInstance, { inference, stored, limits, aborts, failures }: Needs): void {
  type InferenceCall = Pick<Call<typeof chatCompletions>, 'caller' | 'request' | 'reply'> & {
    body: ChatRequest | CompletionRequest | EmbeddingsRequest
  }
  async function answer(call: InferenceCall, operation: Operation): Promise<typeof answered> {
    const { caller, request, reply } = call
    const signal = aborts.forRequest(reply)
    const stream = 'stream' in call.body && call.body.stream === true
    const { account_id } = caller
    const { model } = call.body
    const kept = operation === chat && stored.keeps(call.body) ? (call.body as ChatRequest) : undefined
    const inferenceRequest = {
      caller,
      request_id: request.id,
      body: call.body,
      text: request.bodyText ?? undefined,
      stream,
      span: request.span,
      warn: warningHeader(reply),
    }
    if (stream) {
      const sseResponse = openSseResponse(reply)
      try {
        const { response, meter } = await inference
          .answer(operation, inferenceRequest, signal)
          .catch(aborts.asReason(signal))
        const options = (call.body as ChatRequest).stream_options ?? {}
        if (kept) {
          const events = createStoredStream(
            (answer) => stored.save(account_id, kept, () => answer),
            options.include_usage === true,
          )
          const through = startThrough(events, sseResponse, request.log)
          await relayStream(response, through, meter, { ...options, include_usage: true }, signal)
          return answered
        }
        freeBody(request, call, inferenceRequest)
        await relayStream(response, sseResponse, meter, options, signal)
      } catch (error) {
        if (reply.raw.headersSent) failures.countLate(account_id, model, error)
        sseResponse.fail(error)
      }
      return answered
    }
    const { response, meter } = await inference
      .answer(operation, inferenceRequest, signal)
      .catch(aborts.asReason(signal))
    const headers = answerHeaders(response)
    const { bytes } = meterFullResponse(response, meter)
    if (kept) await stored.save(account_id, kept, () => JSON.parse(bytes.toString('utf8')))
    reply.headers(headers).type('application/json; charset=utf-8').send(bytes)
    return answered
  }

  mount(app, listCallableModels, ({ caller }) => inference.models(caller.account_id))
  mount(app, getCallableModel, ({ caller, params }) => inference.model(caller.account_id, params.model_id))
  mount(app, chatCompletions, (call) => answer(call, chat))
  mount(app, completions, (call) => answer(call, completion))
  mount(app, embeddings, (call) => answer(call, embedding))
  mount(app, chatBatch, async ({ caller, body, request, reply }) => {
    const signal = aborts.forRequest(reply)
    const warnings = new Set<AnswerWarning>()
    const warn = (more: AnswerWarning[]) => {
      for (const warning of more) warnings.add(warning)
      warningHeader(reply)(warnings)
    }
    const answerOne = async (chatRequest: ChatRequest, index: number) => {
      const inferenceRequest = {
        caller,
        request_id: `${request.id}.${index}`,
        body: chatRequest,
        text: undefined,
        stream: false,
        span: request.span,
        warn,
      }
      const { response, meter } = await inference.answer(chat, inferenceRequest, signal)
      return meterFullResponse(response, meter)
    }
    const accountLimits = {
      async countRequest() {
        const refused = await limits.countRequest(caller)
        if (refused) throw rateLimitError(refused)
      },
      acquireSlot: () => limits.acquireSlot(caller),
    }
    const onUnexpected = (error: unknown) => request.log.error({ err: error }, 'a request of a batch failed')
    reply
      .type('application/json; charset=utf-8')
      .send(await answerBatch(body, signal, accountLimits, answerOne, onUnexpected).catch(aborts.asReason(signal)))
    return answered
  })
}
