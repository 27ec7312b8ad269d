// Syntax in which models write tool calls, detected from their templates.

/**
 * Everything but the JSON arguments is constant text, so a grammar can enforce it and a parser can match it exactly.
 */
export interface CallSyntax {
  /** Text that starts a call or a list of calls. */
  trigger: string
  /** Before the first call. Starts with the trigger if not empty. */
  opening: string
  /** From the start of a call to its arguments. */
  head(name: string): string
  /** After the arguments. */
  tail: string
  separator: string
  /** After the last call. */
  closing: string
  /** Whether a call must be the whole answer, and the only call. */
  exclusive: boolean
}

export interface ToolFormat {
  name: 'hermes' | 'mistral' | 'llama' | 'prompted'
  syntax: CallSyntax
  /** Markers of calls that may be control tokens in a vocabulary. */
  control_texts: string[]
}

/** Limit of calls in one answer, and so in one message of the history. */
export const callsMax = 128

const hermes: CallSyntax = {
  trigger: '<tool_call>',
  opening: '',
  head: (name) => `<tool_call>\n{"name": "${name}", "arguments": `,
  tail: '}\n</tool_call>',
  separator: '\n',
  closing: '',
  exclusive: false,
}

const mistral = (space: string): CallSyntax => ({
  trigger: '[TOOL_CALLS]',
  opening: `[TOOL_CALLS]${space}[`,
  head: (name) => `{"name": "${name}", "arguments": `,
  tail: '}',
  separator: ', ',
  closing: ']',
  exclusive: false,
})

const llama: CallSyntax = {
  trigger: '{',
  opening: '',
  head: (name) => `{"name": "${name}", "parameters": `,
  tail: '}',
  separator: '',
  closing: '',
  exclusive: true,
}

/** Detects the format of a template. `prompted` if it has no tools or an unknown format. */
export function detectToolFormat(template: string): ToolFormat {
  // Templates may escape quotes and may split their text at any point.
  const hermesCall = /<tool_call>(?:\\n|[\s"'~+{}-])*\{\\?"name\\?": /
  const otherForm = /<function=|<arg_key>|\[ARGS\]|\[CALL_ID\]/
  if (/\btools\b/.test(template) && !otherForm.test(template)) {
    if (hermesCall.test(template) && /"arguments\\?": /.test(template))
      return { name: 'hermes', syntax: hermes, control_texts: ['<tool_call>', '</tool_call>'] }
    if (template.includes('[TOOL_CALLS]') && template.includes('[AVAILABLE_TOOLS]'))
      return {
        name: 'mistral',
        syntax: mistral(template.includes('[TOOL_CALLS] [') ? ' ' : ''),
        control_texts: ['[TOOL_CALLS]'],
      }
    if (template.includes('<|start_header_id|>') && template.includes('ipython') && /"parameters\\?": /.test(template))
      return { name: 'llama', syntax: llama, control_texts: [] }
  }
  return { name: 'prompted', syntax: hermes, control_texts: [] }
}
