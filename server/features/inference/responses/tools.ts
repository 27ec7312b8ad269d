// The tools of a response as functions of a chat request, and back: a custom tool is a function with one text argument,
// and the tools of a namespace have its name in theirs. Hosted tools are left out.
import type { Response, ResponseRequest, ResponseTool } from '../../../../contract/responses.ts'

type FunctionTool = Extract<ResponseTool, { type: 'function' }>
type CustomTool = Extract<ResponseTool, { type: 'custom' }>

/** The tool behind a function of the chat request. */
interface ToolOrigin {
  kind: 'function' | 'custom'
  name: string
  namespace?: string
}

export interface ResponseTools {
  /** Tools of the chat request. */
  chat: { type: 'function'; function: Record<string, unknown> }[]
  /** Where each of these is in the request, such as 'tools.1.tools.0'. */
  params: string[]
  /** Tools of the request that are used, as the response repeats them. */
  used: Record<string, unknown>[]
  ignored: Response['ignored_tools']
  /** The tool that the model calls `name`. A name that is none is a function. */
  origin(name: string): ToolOrigin
}

export function responseTools(tools: ResponseRequest['tools']): ResponseTools {
  const origins = new Map<string, ToolOrigin>()
  const result: ResponseTools = {
    chat: [],
    params: [],
    used: [],
    ignored: [],
    origin: (name) => origins.get(name) ?? { kind: 'function', name },
  }
  const add = (tool: FunctionTool | CustomTool, param: string, namespace?: string) => {
    const name = chatName(tool.name, namespace)
    origins.set(name, { kind: tool.type, name: tool.name, ...(namespace !== undefined && { namespace }) })
    result.chat.push(tool.type === 'custom' ? customAsFunction({ ...tool, name }) : chatTool({ ...tool, name }))
    result.params.push(param)
  }
  for (const [index, tool] of (tools ?? []).entries()) {
    if (isFunction(tool) || isCustom(tool)) add(tool, `tools.${index}`)
    else if (tool.type === 'namespace' && Array.isArray(tool.tools)) {
      const { name, tools: members } = tool as { name: string; tools: ResponseTool[] }
      for (const [position, member] of members.entries())
        if (isFunction(member) || isCustom(member)) add(member, `tools.${index}.tools.${position}`, name)
        else result.ignored.push(ignoredTool(member))
      if (members.length === 0) {
        result.ignored.push({ type: tool.type, reason: 'It has no tools.' })
        continue
      }
    } else {
      result.ignored.push(ignoredTool(tool))
      continue
    }
    result.used.push(
      isFunction(tool)
        ? {
            ...tool,
            description: tool.description ?? null,
            parameters: tool.parameters ?? null,
            strict: tool.strict ?? false,
          }
        : tool,
    )
  }
  return result
}

/** The name that the model reads for a tool. */
export const chatName = (name: string, namespace: string | undefined) =>
  namespace === undefined ? name : `${namespace}__${name}`

/** A tool in the form of chat completions. */
export const chatTool = ({ type, ...tool }: FunctionTool) => ({ type, function: tool })

/** The arguments of the function that stands for a custom tool. */
export const customArguments = (input: string) => JSON.stringify({ input })

const isFunction = (tool: ResponseTool): tool is FunctionTool => tool.type === 'function'
const isCustom = (tool: ResponseTool): tool is CustomTool => tool.type === 'custom'

const ignoredTool = ({ type }: ResponseTool) => ({
  type,
  reason: 'Hosted tools are not offered here. Run it in your program, and send it as a function.',
})

function customAsFunction({ name, description, format }: CustomTool) {
  const grammar = format?.type === 'grammar' ? format : null
  const texts = [
    description,
    grammar && `The input is a text of this ${grammar.syntax} grammar:\n${grammar.definition}`,
  ].filter((text) => text)
  return {
    type: 'function' as const,
    function: {
      name,
      ...(texts.length > 0 && { description: texts.join('\n\n') }),
      parameters: {
        type: 'object',
        properties: {
          input: { type: 'string', ...(grammar?.syntax === 'regex' && { pattern: `^(?:${grammar.definition})$` }) },
        },
        required: ['input'],
        additionalProperties: false,
      },
    },
  }
}

export interface InputReader {
  /** Reads the next piece of the arguments. Returns the text of the input that is now certain. */
  push(piece: string): string
  /** Ends the arguments. Returns the rest of the input. */
  finish(): string
}

const escapes: Record<string, string> = { b: '\b', f: '\f', n: '\n', r: '\r', t: '\t' }

/** Reads the input of a custom tool out of the arguments `{"input": "…"}` while they are written. */
export function createInputReader(): InputReader {
  let state: 'before' | 'inside' | 'after' = 'before'
  let all = ''
  let buffer = ''
  /** First half of a surrogate pair. */
  let held = ''

  /** Decodes the string as far as its escapes are whole. */
  function decode(): string {
    let text = ''
    let at = 0
    while (at < buffer.length) {
      const char = buffer[at]!
      if (char === '"') {
        state = 'after'
        break
      }
      if (char !== '\\') {
        text += char
        at++
        continue
      }
      const sign = buffer[at + 1]
      const size = sign === 'u' ? 6 : 2
      if (sign === undefined || at + size > buffer.length) break
      text +=
        sign === 'u' ? String.fromCharCode(Number.parseInt(buffer.slice(at + 2, at + 6), 16)) : (escapes[sign] ?? sign)
      at += size
    }
    buffer = buffer.slice(at)
    return text
  }

  /** Holds back half of a surrogate pair. */
  function whole(text: string): string {
    const joined = held + text
    const isHalf = /[\ud800-\udbff]$/.test(joined)
    held = isHalf ? joined.slice(-1) : ''
    return isHalf ? joined.slice(0, -1) : joined
  }

  return {
    push(piece) {
      if (state === 'after') return ''
      buffer += piece
      if (state === 'before') {
        all += piece
        const start = /^\s*\{\s*"input"\s*:\s*"/.exec(buffer)
        if (!start) return ''
        state = 'inside'
        buffer = buffer.slice(start[0].length)
      }
      return whole(decode())
    },
    finish() {
      // Servers that enforce no schema may write other arguments.
      if (state === 'before') return otherInput(all)
      const rest = held
      held = ''
      return rest
    },
  }
}

function otherInput(text: string): string {
  try {
    const { input } = JSON.parse(text) as { input?: unknown }
    return typeof input === 'string' ? input : text
  } catch {
    return text
  }
}
