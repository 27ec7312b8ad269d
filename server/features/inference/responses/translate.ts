// Between the Responses API and chat completions: the items of a conversation become messages.

import { ChatRequest } from '../../../../contract/chat.ts'
import { ApiError } from '../../../../contract/errors.ts'
import type { InputItem, InputPart, OutputItem, Response, ResponseRequest } from '../../../../contract/responses.ts'
import { samplingDefaults } from '../../../../contract/sampling.ts'
import { newId } from '../../../../lib/ids.ts'
import { unixSeconds } from '../../../../lib/utc-day.ts'
import { validationError } from '../../../platform/http/validation.ts'
import type { StoredItem } from './store.ts'
import { chatName, customArguments, type ResponseTools } from './tools.ts'

/** The items of a request that the model reads, with the fields that are kept of each, and a new id. */
export function inputItems(input: ResponseRequest['input']): StoredItem[] {
  const items: InputItem[] =
    typeof input === 'string'
      ? [{ type: 'message', role: 'user', content: [{ type: 'input_text', text: input }] }]
      : input
  const ids = new Set<string>()
  return items
    .filter((item) => item.type !== 'reasoning')
    .map((item) => {
      const sent_id = typeof item.id === 'string' && item.id !== '' ? item.id.slice(0, 100) : undefined
      const id = sent_id === undefined || ids.has(sent_id) ? newId(prefixes[item.type ?? 'message']) : sent_id
      ids.add(id)
      return { id, ...keptFields(item) }
    })
}

const prefixes = {
  message: 'msg',
  function_call: 'fc',
  function_call_output: 'fc',
  custom_tool_call: 'ctc',
  custom_tool_call_output: 'ctc',
  reasoning: 'rs',
} as const

/** Unknown fields are dropped: they would be stored and read again at every turn. */
function keptFields(item: InputItem): InputItem {
  const { call_id } = item as { call_id: string }
  switch (item.type) {
    case 'function_call':
      return { type: item.type, call_id, ...keptNames(item), arguments: item.arguments } as InputItem
    case 'custom_tool_call':
      return { type: item.type, call_id, ...keptNames(item), input: item.input } as InputItem
    case 'function_call_output':
    case 'custom_tool_call_output':
      return { type: item.type, call_id, output: keptContent(item.output as string | InputPart[]) } as InputItem
    default: {
      const { role, content } = item as { role: 'user'; content: string | InputPart[] }
      return { type: 'message', role, content: keptContent(content) }
    }
  }
}

const keptNames = ({ name, namespace }: { name?: unknown; namespace?: unknown }) =>
  namespace == null ? { name } : { name, namespace }

function keptContent(content: string | InputPart[]): string | InputPart[] {
  if (typeof content === 'string') return content
  return content.map((part) => {
    if (part.type === 'input_image') return { type: part.type, image_url: part.image_url }
    return part.type === 'refusal' ? { type: part.type, refusal: part.refusal } : { type: part.type, text: part.text }
  })
}

/** The chat request of a conversation. Throws an ApiError that names the fields of the Responses API. */
export function chatRequest(
  request: ResponseRequest,
  tools: ResponseTools,
  items: readonly (InputItem | OutputItem)[],
): ChatRequest {
  const { tool_choice, text } = request
  const format = text?.format
  const parsed = ChatRequest.safeParse({
    model: request.model,
    messages: [
      ...(request.instructions ? [{ role: 'system', content: request.instructions }] : []),
      ...messagesOf(items),
    ],
    temperature: request.temperature,
    top_p: request.top_p,
    presence_penalty: request.presence_penalty,
    frequency_penalty: request.frequency_penalty,
    max_completion_tokens: request.max_output_tokens,
    parallel_tool_calls: request.parallel_tool_calls,
    reasoning_effort: request.reasoning?.effort,
    ...(tools.chat.length > 0 && { tools: tools.chat }),
    tool_choice:
      typeof tool_choice === 'object' && tool_choice !== null
        ? chatChoice(tool_choice)
        : tools.chat.length > 0 || tool_choice === 'required'
          ? tool_choice
          : undefined,
    ...(format && { response_format: responseFormat(format) }),
    ...(request.stream && { stream: true, stream_options: { include_usage: true } }),
  })
  if (!parsed.success) throw renamed(validationError(parsed.error.issues, 'request'), tools)
  return parsed.data
}

function chatChoice(choice: Extract<ResponseRequest['tool_choice'], object>): object {
  const named = ({ name, namespace }: { name?: string | null | undefined; namespace?: unknown }) => ({
    type: 'function',
    function: { name: chatName(name ?? '', typeof namespace === 'string' ? namespace : undefined) },
  })
  if (choice.type !== 'allowed_tools') return named(choice)
  const { mode, tools } = choice
  // Hosted tools have no name, and are left out of the tools too.
  return { type: choice.type, allowed_tools: { mode, tools: tools.filter(({ name }) => name).map(named) } }
}

/** A format in the form of chat completions. */
export function responseFormat(format: NonNullable<NonNullable<ResponseRequest['text']>['format']>) {
  if (format.type !== 'json_schema') return format
  const { type, ...json_schema } = format
  return { type, json_schema }
}

/** Calls of one turn are one message, with the text before them. */
function messagesOf(items: readonly (InputItem | OutputItem)[]): object[] {
  const messages: { role: string; content?: unknown; tool_calls?: object[]; tool_call_id?: string }[] = []
  for (const item of items) {
    switch (item.type) {
      case 'reasoning':
        break
      case 'function_call':
      case 'custom_tool_call': {
        const { name, namespace } = item as { name: string; namespace?: string | null }
        const values = item.type === 'function_call' ? item.arguments : customArguments(item.input as string)
        const call = {
          id: item.call_id as string,
          type: 'function',
          function: { name: chatName(name, namespace ?? undefined), arguments: values },
        }
        const last = messages.at(-1)
        if (last?.role === 'assistant') last.tool_calls = [...(last.tool_calls ?? []), call]
        else messages.push({ role: 'assistant', content: null, tool_calls: [call] })
        break
      }
      case 'function_call_output':
      case 'custom_tool_call_output':
        messages.push({
          role: 'tool',
          tool_call_id: item.call_id as string,
          content: contentOf(item.output as string | InputPart[]),
        })
        break
      default: {
        const { role, content } = item as { role: string; content: string | InputPart[] }
        messages.push({ role, content: contentOf(content) })
      }
    }
  }
  return messages
}

function contentOf(content: string | InputPart[]): unknown {
  if (typeof content === 'string') return content
  const parts = content.map((part) => {
    if (part.type === 'input_image') return { type: 'image_url', image_url: { url: part.image_url } }
    if (part.type === 'refusal') return { type: 'refusal', refusal: part.refusal }
    return { type: 'text', text: part.text }
  })
  return parts.length === 1 && parts[0]!.type === 'text' ? (parts[0] as { text: string }).text : parts
}

const names: [RegExp, string][] = [
  [/^messages.*/, 'input'],
  [/^max_(completion_)?tokens$/, 'max_output_tokens'],
  [/^response_format.*/, 'text.format'],
  [/^tool_choice\.function\./, 'tool_choice.'],
  [/^tool_choice\.allowed_tools\./, 'tool_choice.'],
]

/** The error of a chat request with the fields of the Responses API. */
export function renamed(error: unknown, tools: Pick<ResponseTools, 'params'>): unknown {
  if (!(error instanceof ApiError) || error.param === undefined) return error
  const name = names.find(([pattern]) => pattern.test(error.param!))
  const inTool = /^tools\.(\d+)(?:\.function(?:\.(.*))?)?$/.exec(error.param)
  if (!name && !inTool) return error
  const param = inTool
    ? [tools.params[Number(inTool[1])] ?? 'tools', inTool[2]].filter((part) => part !== undefined).join('.')
    : error.param.replace(...name!)
  return error.with({ param, message: error.message.replaceAll(`'${error.param}'`, `'${param}'`) })
}

/** A response before its first token. */
export function newResponse(
  request: ResponseRequest,
  { used, ignored }: Pick<ResponseTools, 'used' | 'ignored'>,
  created_at: number,
): Response {
  return {
    id: newId('resp'),
    object: 'response',
    created_at: unixSeconds(created_at),
    completed_at: null,
    status: 'in_progress',
    error: null,
    incomplete_details: null,
    instructions: request.instructions ?? null,
    model: request.model,
    output: [],
    previous_response_id: request.previous_response_id ?? null,
    parallel_tool_calls: request.parallel_tool_calls ?? true,
    temperature: request.temperature ?? samplingDefaults.temperature,
    top_p: request.top_p ?? samplingDefaults.top_p,
    presence_penalty: request.presence_penalty ?? 0,
    frequency_penalty: request.frequency_penalty ?? 0,
    top_logprobs: 0,
    max_output_tokens: request.max_output_tokens ?? null,
    max_tool_calls: null,
    tool_choice: request.tool_choice ?? 'auto',
    tools: used,
    ignored_tools: ignored,
    text: { ...request.text, format: request.text?.format ?? { type: 'text' } },
    reasoning: { effort: request.reasoning?.effort ?? null, summary: null },
    truncation: 'disabled',
    service_tier: 'default',
    background: false,
    store: request.store ?? true,
    user: request.user ?? null,
    safety_identifier: request.safety_identifier ?? null,
    prompt_cache_key: request.prompt_cache_key ?? null,
    metadata: request.metadata ?? {},
    usage: null,
  }
}
