// How models write calls of tools. Which form a model was trained on is read from its template.

/**
 * Around the JSON of the arguments everything is constant, so that a grammar can hold a model to it and a parser needs
 * no guessing.
 */
export type CallSyntax = {
  /** What tells that a call, or the list of calls, begins. */
  trigger: string
  /** Before the first call; begins with the trigger, where it is not empty. */
  opening: string
  /** From the beginning of a call to its arguments. */
  head(name: string): string
  /** After the arguments. */
  tail: string
  separator: string
  /** After the last call. */
  closing: string
  /** Whether a call is the whole answer, and the only one. */
  alone: boolean
}

export type ToolFormat = {
  name: 'hermes' | 'mistral' | 'llama' | 'prompted'
  syntax: CallSyntax
  /** Marks of calls that a vocabulary may have as control tokens. */
  control_texts: string[]
}

/** The largest number of calls in one answer, and so in a message of the history. */
export const callsMax = 128

const hermes: CallSyntax = {
  trigger: '<tool_call>',
  opening: '',
  head: (name) => `<tool_call>\n{"name": "${name}", "arguments": `,
  tail: '}\n</tool_call>',
  separator: '\n',
  closing: '',
  alone: false,
}

const mistral = (space: string): CallSyntax => ({
  trigger: '[TOOL_CALLS]',
  opening: `[TOOL_CALLS]${space}[`,
  head: (name) => `{"name": "${name}", "arguments": `,
  tail: '}',
  separator: ', ',
  closing: ']',
  alone: false,
})

const llama: CallSyntax = {
  trigger: '{',
  opening: '',
  head: (name) => `{"name": "${name}", "parameters": `,
  tail: '}',
  separator: '',
  closing: '',
  alone: true,
}

/** The format that a template asks for; `prompted` where it knows no tools or a form that is not known here. */
export function detectToolFormat(template: string): ToolFormat {
  // Templates write the quotes of their prose with or without a backslash, and cut their texts in pieces where they
  // like.
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
