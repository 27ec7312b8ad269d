// Tool calling for models whose template has no tools: describes the tools in a system message and writes the history's
// calls and results as text. docs/tools.md quotes the prompt.
import { joinContents, type TemplateContent } from './content.ts'
import type { TemplateMessage, TemplateTool } from './messages.ts'
import { promptedFormat } from './tool-formats.ts'

const { syntax } = promptedFormat

function toolPrompt(tools: readonly TemplateTool[]): string {
  return [
    'You can call tools. Each line between <tools> and </tools> describes one of them as JSON, ' +
      'with the schema of its arguments:',
    '<tools>',
    ...tools.map((tool) => JSON.stringify(tool.function)),
    '</tools>',
    'To call a tool, write exactly this, with the name of the tool and a JSON object of its arguments:',
    '<tool_call>',
    '{"name": "the name", "arguments": {"an argument": "its value"}}',
    '</tool_call>',
    'The results then come between <tool_response> and </tool_response>. ' +
      'Where no tool is needed, answer in plain text.',
  ].join('\n')
}

/** Appends the tool prompt to the system message, or adds one. */
export function withToolPrompt(
  messages: readonly TemplateMessage[],
  tools: readonly TemplateTool[],
): TemplateMessage[] {
  const [first, ...rest] = messages
  if (first?.role === 'system')
    return [{ ...first, content: joinParagraphs(first.content, toolPrompt(tools)) }, ...rest]
  return [{ role: 'system', content: toolPrompt(tools) }, ...messages]
}

/** For templates without a system role: moves the system message into the first user message. */
export function mergeSystemIntoUser(messages: readonly TemplateMessage[]): TemplateMessage[] {
  const [system, ...rest] = messages
  const user = rest.findIndex(({ role }) => role === 'user')
  if (user < 0) return [{ role: 'user', content: system!.content }, ...rest]
  return rest.map((message, index) =>
    index === user ? { ...message, content: joinParagraphs(system!.content, message.content) } : message,
  )
}

/** Rewrites calls as assistant text, and results as user text merged with the user message that follows. */
export function callsAsText(messages: readonly TemplateMessage[]): TemplateMessage[] {
  const out: TemplateMessage[] = []
  let inToolResults = false
  for (const { tool_calls, tool_call_id, name, ...message } of messages) {
    const last = out.at(-1)
    if (message.role === 'tool') {
      const response = joinContents(['<tool_response>\n', message.content, '\n</tool_response>'], '')
      if (inToolResults) last!.content = joinContents([last!.content, response], '\n')
      else out.push({ role: 'user', content: response })
      inToolResults = true
      continue
    }
    if (inToolResults && message.role === 'user') last!.content = joinParagraphs(last!.content, message.content)
    else if (!tool_calls) out.push(message)
    else {
      const calls = tool_calls.map(
        ({ function: { name, arguments: values } }) => `${syntax.head(name)}${values}${syntax.tail}`,
      )
      out.push({ ...message, content: joinContents([message.content, ...calls], syntax.separator) })
    }
    inToolResults = false
  }
  return out
}

function joinParagraphs(before: TemplateContent, after: TemplateContent): TemplateContent {
  return joinContents([before, after], '\n\n')
}
