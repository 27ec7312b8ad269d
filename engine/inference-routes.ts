// The routes that generate text.
import type { IncomingMessage, ServerResponse } from 'node:http'
import { ChatRequest } from '../contract/chat.ts'
import { CompletionRequest } from '../contract/completions.ts'
import { ApiError } from '../contract/errors.ts'
import { answerStream, answerWhole, type Dialect } from './answer.ts'
import { renderChat } from './chat/conversation.ts'
import { tokenizePrompt } from './chat/template.ts'
import { chatDialect, completionDialect, type DialectOptions } from './dialects.ts'
import { readBody, sendError } from './http-io.ts'
import type { MemoryLimits } from './lane-sizes.ts'
import type { Model } from './llama/model.ts'
import type { Models } from './models.ts'
import { prepareGeneration, type SamplingFields } from './prepare.ts'
import type { Scheduler } from './scheduler.ts'
import type { ServedModel } from './served-model.ts'

export type InferenceServices = { models: Models; scheduler: Scheduler; limits: MemoryLimits; onFault(error: unknown): void }

type Common = SamplingFields & { model: string; stream?: boolean | null; stream_options?: { include_usage?: boolean | null } | null }

export async function chatCompletions(services: InferenceServices, request: IncomingMessage, response: ServerResponse): Promise<void> {
  const body = await readBody(request, ChatRequest)
  await generate(services, request, response, body, (model) => renderChat(model, body.messages), chatDialect)
}

export async function completions(services: InferenceServices, request: IncomingMessage, response: ServerResponse): Promise<void> {
  const body = await readBody(request, CompletionRequest)
  await generate(services, request, response, body, () => String(body.prompt), completionDialect)
}

async function generate(
  { models, scheduler, limits, onFault }: InferenceServices,
  request: IncomingMessage,
  response: ServerResponse,
  body: Common,
  promptText: (model: Model) => string,
  makeDialect: (options: DialectOptions) => Dialect,
): Promise<void> {
  const served = models.get(body.model)
  const use = useModel(served, response)
  try {
    const prompt = await tokenizePrompt(served.model, promptText(served.model))
    const account = header(request, 'x-tunery-account') ?? ''
    const { request: generation, size } = prepareGeneration(served.model, limits, prompt, body, account)
    if (use.ended()) return
    const includeUsage = body.stream_options?.include_usage === true
    const dialect = makeDialect({ model: header(request, 'x-served-model-name') ?? body.model, nullUsage: includeUsage })
    const withUsage = includeUsage || header(request, 'x-tunery-usage') === 'always'
    const events = body.stream ? answerStream(response, dialect, withUsage, use.end) : answerWhole(response, dialect, use.end)
    use.cancelWith(scheduler.submit(served, size, generation, events).cancel, events.onError)
  } catch (error) {
    if (!(error instanceof ApiError)) onFault(error)
    sendError(response, error)
    use.end()
  }
}

/** Counts a request as a user of the model until it has ended, its client has left, or an unload will wait no longer. */
function useModel(served: ServedModel, response: ServerResponse) {
  let ended = false
  let cancel = () => {}
  let fail: (error: ApiError) => void = (error) => sendError(response, error)
  served.users++
  const end = () => {
    if (ended) return
    ended = true
    served.users--
    response.off('close', abandon)
    served.closing.signal.removeEventListener('abort', onClosing)
  }
  const abandon = () => {
    cancel()
    end()
  }
  const onClosing = () => {
    cancel()
    fail(new ApiError('engine_unavailable', 'The model was unloaded.'))
    end()
  }
  response.on('close', abandon)
  served.closing.signal.addEventListener('abort', onClosing)
  return {
    end,
    ended: () => ended,
    cancelWith(how: () => void, onError: (error: ApiError) => void) {
      cancel = how
      fail = onError
    },
  }
}

function header(request: IncomingMessage, name: string): string | undefined {
  const value = request.headers[name]
  return typeof value === 'string' && value !== '' ? value : undefined
}
