// Turns the pieces of a chat answer into the items of a response, and into the events of its stream.

import type { ChatDelta } from '../../../../contract/chat.ts'
import type { OutputItem, Response } from '../../../../contract/responses.ts'
import type { Usage } from '../../../../contract/sampling.ts'
import { newId } from '../../../../lib/ids.ts'
import { unixSeconds } from '../../../../lib/utc-day.ts'
import { createInputReader, type InputReader, type ResponseTools } from './tools.ts'

type Item<T extends OutputItem['type']> = Extract<OutputItem, { type: T }>
type Emit = (type: string, fields: object) => void
/** A call that grows. `arguments`: as the model writes them. */
interface Call {
  item: Item<'function_call'> | Item<'custom_tool_call'>
  arguments: string
  reader: InputReader
}

export interface ResponseBuilder {
  response: Response
  begin(): void
  add(delta: ChatDelta): void
  /** Closes all items and sets the status. */
  end(finish_reason: string | null, usage: Usage | null | undefined, time: number): void
  /** The events of the stream that have not been taken, as text. */
  takeEvents(): string
  /** The last event, once the response has ended. */
  closing(): string
  /** Closes all items, and ends the response as failed. */
  fail(error: { code: string; message: string }): void
}

export function createResponseBuilder(response: Response, tools: Pick<ResponseTools, 'origin'>): ResponseBuilder {
  let events = ''
  let sequence_number = 0
  const write = (type: string, fields: object) =>
    `event: ${type}\ndata: ${JSON.stringify({ type, sequence_number: sequence_number++, ...fields })}\n\n`
  const emit: Emit = (type, fields) => {
    events += write(type, fields)
  }
  /** The text item, reasoning or message, that grows. Calls may grow side by side. */
  let open: Item<'message'> | Item<'reasoning'> | undefined
  const calls = new Map<number, Call>()
  const indexOf = (item: OutputItem) => response.output.indexOf(item)
  const placeOf = (item: OutputItem) => ({ item_id: item.id, output_index: indexOf(item) })

  function start<T extends OutputItem>(item: T): T {
    response.output.push(item)
    emit('response.output_item.added', { output_index: indexOf(item), item })
    return item
  }

  function finish(item: OutputItem, status: 'completed' | 'incomplete'): void {
    item.status = status
    emit('response.output_item.done', { output_index: indexOf(item), item })
  }

  function closeText(status: 'completed' | 'incomplete' = 'completed'): void {
    if (!open) return
    const place = { ...placeOf(open), content_index: 0 }
    const part = open.content[0]!
    if (part.type === 'output_text')
      emit('response.output_text.done', { ...place, text: part.text, logprobs: part.logprobs })
    else emit('response.reasoning_text.done', { ...place, text: part.text })
    emit('response.content_part.done', { ...place, part })
    finish(open, status)
    open = undefined
  }

  function addText(delta: string): void {
    if (open?.type !== 'message') {
      closeText()
      open = start({ type: 'message', id: newId('msg'), status: 'in_progress', role: 'assistant', content: [] })
      open.content.push({ type: 'output_text', text: '', annotations: [], logprobs: [] })
      emit('response.content_part.added', { ...placeOf(open), content_index: 0, part: open.content[0] })
    }
    open.content[0]!.text += delta
    emit('response.output_text.delta', { ...placeOf(open), content_index: 0, delta, logprobs: [] })
  }

  function addReasoning(delta: string): void {
    if (open?.type !== 'reasoning') {
      closeText()
      open = start({ type: 'reasoning', id: newId('rs'), status: 'in_progress', summary: [], content: [] })
      open.content.push({ type: 'reasoning_text', text: '' })
      emit('response.content_part.added', { ...placeOf(open), content_index: 0, part: open.content[0] })
    }
    open.content[0]!.text += delta
    emit('response.reasoning_text.delta', { ...placeOf(open), content_index: 0, delta })
  }

  function addCall({ index, id, function: call }: NonNullable<ChatDelta['tool_calls']>[number]): void {
    closeText()
    let written = calls.get(index)
    if (!written) {
      const { kind, ...names } = tools.origin(call?.name ?? '')
      const common = { status: 'in_progress' as const, call_id: id ?? newId('fc'), ...names }
      written = {
        item: start(
          kind === 'custom'
            ? { type: 'custom_tool_call', id: newId('ctc'), ...common, input: '' }
            : { type: 'function_call', id: newId('fc'), ...common, arguments: '' },
        ),
        arguments: '',
        reader: createInputReader(),
      }
      calls.set(index, written)
    }
    // Some servers send the name first, without arguments.
    if (!call?.arguments) return
    written.arguments += call.arguments
    addArguments(
      written.item,
      written.item.type === 'function_call' ? call.arguments : written.reader.push(call.arguments),
    )
  }

  function addArguments(item: Call['item'], delta: string): void {
    if (delta === '') return
    if (item.type === 'function_call') {
      item.arguments += delta
      emit('response.function_call_arguments.delta', { ...placeOf(item), delta })
    } else {
      item.input += delta
      emit('response.custom_tool_call_input.delta', { ...placeOf(item), delta })
    }
  }

  function closeAll(status: 'completed' | 'incomplete'): void {
    closeText(status)
    for (const { item, arguments: written, reader } of calls.values()) {
      if (item.type === 'custom_tool_call') addArguments(item, reader.finish())
      if (item.type === 'function_call')
        emit('response.function_call_arguments.done', { ...placeOf(item), name: item.name, arguments: item.arguments })
      else emit('response.custom_tool_call_input.done', { ...placeOf(item), input: item.input })
      // The tokens may have run out in a later call, or in the text around this one.
      finish(item, status === 'incomplete' && isJson(written) ? 'completed' : status)
    }
  }

  return {
    response,
    begin() {
      emit('response.created', { response })
      emit('response.in_progress', { response })
    },
    add({ content, reasoning_content, tool_calls }) {
      if (reasoning_content) addReasoning(reasoning_content)
      if (content) addText(content)
      for (const call of tool_calls ?? []) addCall(call)
    },
    end(finish_reason, usage, time) {
      const cut = finish_reason === 'length'
      const status = cut ? 'incomplete' : 'completed'
      closeAll(status)
      response.status = status
      response.incomplete_details = cut ? { reason: 'max_output_tokens' } : null
      response.completed_at = cut ? null : unixSeconds(time)
      if (usage)
        response.usage = {
          input_tokens: usage.prompt_tokens,
          input_tokens_details: { cached_tokens: usage.prompt_tokens_details?.cached_tokens ?? 0 },
          output_tokens: usage.completion_tokens,
          output_tokens_details: { reasoning_tokens: 0 },
          total_tokens: usage.total_tokens,
        }
    },
    takeEvents() {
      const taken = events
      events = ''
      return taken
    },
    closing: () => `${write(`response.${response.status}`, { response })}data: [DONE]\n\n`,
    fail(error) {
      closeAll('incomplete')
      response.status = 'failed'
      response.error = error
      emit('response.failed', { response })
    },
  }
}

function isJson(text: string): boolean {
  try {
    JSON.parse(text)
    return true
  } catch {
    return false
  }
}
