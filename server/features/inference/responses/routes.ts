import type { FastifyInstance } from 'fastify'
import type { ChatResponse } from '../../../../contract/chat.ts'
import {
  createResponse,
  deleteResponse,
  getResponse,
  listInputItems,
  type Response,
} from '../../../../contract/responses.ts'
import { answered, mount } from '../../../platform/http/mount.ts'
import type { Aborts } from '../gateway/aborts.ts'
import type { FailureCounter } from '../gateway/failures.ts'
import { answerHeaders, meterFullResponse, relayStream, warningHeader } from '../gateway/relay.ts'
import { chat } from '../gateway/routes.ts'
import { openSseResponse, startThrough } from '../gateway/sse-response.ts'
import type { Inference } from '../service.ts'
import { ResponseBuilder } from './events.ts'
import type { Responses } from './service.ts'
import { createResponseStream } from './stream.ts'
import { responseTools } from './tools.ts'
import { chatRequest, inputItems, newResponse, renamed } from './translate.ts'

interface Needs {
  inference: Pick<Inference, 'answer'>
  responses: Responses
  aborts: Aborts
  now(): number
  failures: FailureCounter
}

export function responseRoutes(app: FastifyInstance, { inference, responses, aborts, now, failures }: Needs): void {
  mount(app, createResponse, async ({ caller, body, request, reply }) => {
    const { account_id } = caller
    const signal = aborts.forRequest(reply)
    const input = inputItems(body.input)
    const earlier = await responses.conversation(account_id, body.previous_response_id)
    if (body.store !== false) await responses.requireStorable(account_id, input)
    const stream = body.stream === true
    const tools = responseTools(body.tools)
    const chatBody = chatRequest(body, tools, [...earlier, ...input])
    const builder = new ResponseBuilder(newResponse(body, tools, now()), tools)
    const save = (response: Response) =>
      response.store ? responses.save(account_id, input, response) : Promise.resolve()
    const ask = () =>
      inference
        .answer(
          chat,
          {
            caller,
            request_id: request.id,
            body: chatBody,
            text: undefined,
            stream,
            span: request.span,
            warn: warningHeader(reply),
          },
          signal,
        )
        .catch((error) => aborts.asReason(signal)(renamed(error, tools)))

    if (!stream) {
      const { response, meter } = await ask()
      const headers = answerHeaders(response)
      const answer = JSON.parse(meterFullResponse(response, meter).bytes.toString('utf8')) as ChatResponse
      const { message, finish_reason } = answer.choices[0]!
      const { content, reasoning_content, tool_calls } = message
      if (reasoning_content) builder.add({ reasoning_content })
      if (content !== null) builder.add({ content })
      builder.add({ tool_calls: (tool_calls ?? []).map((call, index) => ({ ...call, index })) })
      builder.end(finish_reason, answer.usage, now())
      await save(builder.response)
      reply.headers(headers)
      return builder.response
    }

    const sseResponse = openSseResponse(reply)
    try {
      const { response, meter } = await ask()
      const events = createResponseStream(builder, () => save(builder.response), now)
      const through = startThrough(events, sseResponse, request.log)
      await relayStream(response, through, meter, { include_usage: true }, signal)
    } catch (error) {
      if (reply.raw.headersSent) failures.countLate(account_id, body.model, error)
      sseResponse.fail(error)
    }
    return answered
  })
  mount(app, getResponse, ({ caller, params }) => responses.get(caller.account_id, params.response_id))
  mount(app, listInputItems, ({ caller, params, query }) =>
    responses.inputItems(caller.account_id, params.response_id, query),
  )
  mount(app, deleteResponse, ({ caller, params }) => responses.delete(caller.account_id, params.response_id))
}
