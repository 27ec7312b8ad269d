// JSON of text completions: complete body and stream chunks.
import type { CompletionLogprobs, CompletionResponse } from '../../../contract/completions.ts'
import type { Vocab } from '../../llama/vocab.ts'
import { type TokenLogprobs, tokenText } from '../../sampling/logprobs.ts'
import { type AnswerFormat, type AnswerFormatOptions, envelope, newCompletion } from './format.ts'

export function createCompletionFormat({ model, nullUsage }: AnswerFormatOptions, vocab: Vocab): AnswerFormat {
  const { id, created } = newCompletion('cmpl')
  const { head, tail } = envelope({ id, object: 'text_completion', created, model }, nullUsage)
  // Text offset of each choice's next token, in characters.
  const offsets = new Map<number, number>()

  const toLogprobs = (index: number, tokenLogprobs: TokenLogprobs[]): CompletionLogprobs => {
    const tokens = tokenLogprobs.map(({ token }) => tokenText(vocab, token))
    const hasTop = tokenLogprobs.some(({ top }) => top.length > 0)
    return {
      tokens,
      token_logprobs: tokenLogprobs.map(({ logprob }) => logprob),
      top_logprobs: hasTop
        ? tokenLogprobs.map(({ top }) =>
            top.length === 0
              ? null
              : Object.fromEntries(top.map(({ token, logprob }) => [tokenText(vocab, token), logprob])),
          )
        : null,
      text_offset: tokens.map((text) => {
        const offset = offsets.get(index) ?? 0
        offsets.set(index, offset + text.length)
        return offset
      }),
    }
  }
  const chunk = (index: number, text: string, tokenLogprobs: TokenLogprobs[] | null, finish: string) => {
    const logprobsJson =
      tokenLogprobs && tokenLogprobs.length > 0 ? JSON.stringify(toLogprobs(index, tokenLogprobs)) : 'null'
    const content = `"index":${index},"text":${JSON.stringify(text)},"logprobs":${logprobsJson}`
    return `${head}[{${content},"finish_reason":${finish}}]${tail}`
  }
  const textOf = (part: { kind: string; text?: string }) => part.text ?? ''
  return {
    completeBody: (choices, usage): CompletionResponse => ({
      id,
      object: 'text_completion',
      created,
      model,
      choices: choices.map(({ parts, tokenLogprobs, finish_reason }, index) => ({
        index,
        text: parts.map(textOf).join(''),
        logprobs: tokenLogprobs && toLogprobs(index, tokenLogprobs),
        finish_reason,
      })),
      usage,
    }),
    openingChunks: () => [],
    partChunk: (index, part, tokenLogprobs) => chunk(index, textOf(part), tokenLogprobs, 'null'),
    closingChunk: (index, finish_reason, tokenLogprobs) => chunk(index, '', tokenLogprobs, `"${finish_reason}"`),
    usageChunk: (usage) => `${head}[],"usage":${JSON.stringify(usage)}}`,
  }
}
