// Turns the pieces of a chat answer into the items of a response, and into the events of its stream.

import type { ChatDelta } from '../../../../contract/chat.ts'
import type { OutputItem, Response } from '../../../../contract/responses.ts'
import type { Usage } from '../../../../contract/sampling.ts'
import { newId } from '../../../../lib/ids.ts'
import { unixSeconds } from '../../../../lib/utc-day.ts'
import { createInputReader, type InputReader, type ResponseTools } from './tools.ts'

type Item<T extends OutputItem['type']> = Extract<OutputItem, { type: T }>
/** A call that grows. `arguments`: as the model writes them. */
interface Call {
  item: Item<'function_call'> | Item<'custom_tool_call'>
  arguments: string
  reader: InputReader
}

export class ResponseBuilder {
  readonly response: Response
  private readonly tools: Pick<ResponseTools, 'origin'>
  private events = ''
  private sequence_number = 0
  /** The text item, reasoning or message, that grows. Calls may grow side by side. */
  private open: Item<'message'> | Item<'reasoning'> | undefined
  private readonly calls = new Map<number, Call>()

  constructor(response: Response, tools: Pick<ResponseTools, 'origin'>) {
    this.response = response
    this.tools = tools
  }

  begin(): void {
    this.addEvent('response.created', { response: this.response })
    this.addEvent('response.in_progress', { response: this.response })
  }

  add({ content, reasoning_content, tool_calls }: ChatDelta): void {
    if (reasoning_content) this.addReasoning(reasoning_content)
    if (content) this.addText(content)
    for (const call of tool_calls ?? []) this.addCall(call)
  }

  /** Closes all items and sets the status. */
  end(finish_reason: string | null, usage: Usage | null | undefined, time: number): void {
    const cut = finish_reason === 'length'
    const status = cut ? 'incomplete' : 'completed'
    this.closeAll(status)
    this.response.status = status
    this.response.incomplete_details = cut ? { reason: 'max_output_tokens' } : null
    this.response.completed_at = cut ? null : unixSeconds(time)
    if (usage)
      this.response.usage = {
        input_tokens: usage.prompt_tokens,
        input_tokens_details: { cached_tokens: usage.prompt_tokens_details?.cached_tokens ?? 0 },
        output_tokens: usage.completion_tokens,
        output_tokens_details: { reasoning_tokens: 0 },
        total_tokens: usage.total_tokens,
      }
  }

  /** The events of the stream that have not been taken, as text. */
  takeEvents(): string {
    const taken = this.events
    this.events = ''
    return taken
  }

  /** The last event, once the response has ended. */
  closing(): string {
    return `${this.write(`response.${this.response.status}`, { response: this.response })}data: [DONE]\n\n`
  }

  /** Closes all items, and ends the response as failed. */
  fail(error: { code: string; message: string }): void {
    this.closeAll('incomplete')
    this.response.status = 'failed'
    this.response.error = error
    this.addEvent('response.failed', { response: this.response })
  }

  private write(type: string, fields: object) {
    return `event: ${type}\ndata: ${JSON.stringify({ type, sequence_number: this.sequence_number++, ...fields })}\n\n`
  }

  private addEvent(type: string, fields: object) {
    this.events += this.write(type, fields)
  }

  private indexOf(item: OutputItem) {
    return this.response.output.indexOf(item)
  }

  private placeOf(item: OutputItem) {
    return { item_id: item.id, output_index: this.indexOf(item) }
  }

  private start<T extends OutputItem>(item: T): T {
    this.response.output.push(item)
    this.addEvent('response.output_item.added', { output_index: this.indexOf(item), item })
    return item
  }

  private finish(item: OutputItem, status: 'completed' | 'incomplete'): void {
    item.status = status
    this.addEvent('response.output_item.done', { output_index: this.indexOf(item), item })
  }

  private closeText(status: 'completed' | 'incomplete' = 'completed'): void {
    if (!this.open) return
    const place = { ...this.placeOf(this.open), content_index: 0 }
    const part = this.open.content[0]!
    if (part.type === 'output_text')
      this.addEvent('response.output_text.done', { ...place, text: part.text, logprobs: part.logprobs })
    else this.addEvent('response.reasoning_text.done', { ...place, text: part.text })
    this.addEvent('response.content_part.done', { ...place, part })
    this.finish(this.open, status)
    this.open = undefined
  }

  private addText(delta: string): void {
    if (this.open?.type !== 'message') {
      this.closeText()
      this.open = this.start({
        type: 'message',
        id: newId('msg'),
        status: 'in_progress',
        role: 'assistant',
        content: [],
      })
      this.open.content.push({ type: 'output_text', text: '', annotations: [], logprobs: [] })
      this.addEvent('response.content_part.added', {
        ...this.placeOf(this.open),
        content_index: 0,
        part: this.open.content[0],
      })
    }
    this.open.content[0]!.text += delta
    this.addEvent('response.output_text.delta', { ...this.placeOf(this.open), content_index: 0, delta, logprobs: [] })
  }

  private addReasoning(delta: string): void {
    if (this.open?.type !== 'reasoning') {
      this.closeText()
      this.open = this.start({ type: 'reasoning', id: newId('rs'), status: 'in_progress', summary: [], content: [] })
      this.open.content.push({ type: 'reasoning_text', text: '' })
      this.addEvent('response.content_part.added', {
        ...this.placeOf(this.open),
        content_index: 0,
        part: this.open.content[0],
      })
    }
    this.open.content[0]!.text += delta
    this.addEvent('response.reasoning_text.delta', { ...this.placeOf(this.open), content_index: 0, delta })
  }

  private addCall({ index, id, function: call }: NonNullable<ChatDelta['tool_calls']>[number]): void {
    this.closeText()
    let written = this.calls.get(index)
    if (!written) {
      const { kind, ...names } = this.tools.origin(call?.name ?? '')
      const common = { status: 'in_progress' as const, call_id: id ?? newId('fc'), ...names }
      written = {
        item: this.start(
          kind === 'custom'
            ? { type: 'custom_tool_call', id: newId('ctc'), ...common, input: '' }
            : { type: 'function_call', id: newId('fc'), ...common, arguments: '' },
        ),
        arguments: '',
        reader: createInputReader(),
      }
      this.calls.set(index, written)
    }
    // Some servers send the name first, without arguments.
    if (!call?.arguments) return
    written.arguments += call.arguments
    this.addArguments(
      written.item,
      written.item.type === 'function_call' ? call.arguments : written.reader.push(call.arguments),
    )
  }

  private addArguments(item: Call['item'], delta: string): void {
    if (delta === '') return
    if (item.type === 'function_call') {
      item.arguments += delta
      this.addEvent('response.function_call_arguments.delta', { ...this.placeOf(item), delta })
    } else {
      item.input += delta
      this.addEvent('response.custom_tool_call_input.delta', { ...this.placeOf(item), delta })
    }
  }

  private closeAll(status: 'completed' | 'incomplete'): void {
    this.closeText(status)
    for (const { item, arguments: written, reader } of this.calls.values()) {
      if (item.type === 'custom_tool_call') this.addArguments(item, reader.finish())
      if (item.type === 'function_call')
        this.addEvent('response.function_call_arguments.done', {
          ...this.placeOf(item),
          name: item.name,
          arguments: item.arguments,
        })
      else this.addEvent('response.custom_tool_call_input.done', { ...this.placeOf(item), input: item.input })
      // The tokens may have run out in a later call, or in the text around this one.
      this.finish(item, status === 'incomplete' && isJson(written) ? 'completed' : status)
    }
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
