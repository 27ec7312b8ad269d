// The shapes of plain completions, whole and in pieces.
import type { CompletionLogprobs, CompletionResponse } from '../../../contract/completions.ts'
import type { Vocab } from '../../llama/vocab.ts'
import { type PlaceLogprobs, tokenText } from '../../sampling/logprobs.ts'
import { type Dialect, type DialectOptions, envelope, newAnswer } from './format.ts'

export function completionDialect({ model, nullUsage }: DialectOptions, vocab: Vocab): Dialect {
  const { id, created } = newAnswer('cmpl')
  const { head, tail } = envelope({ id, object: 'text_completion', created, model }, nullUsage)
  // Characters of each choice that its tokens told so far have.
  const offsets = new Map<number, number>()

  const logprobs = (index: number, places: PlaceLogprobs[]): CompletionLogprobs => {
    const tokens = places.map(({ token }) => tokenText(vocab, token))
    const hasTop = places.some(({ top }) => top.length > 0)
    return {
      tokens,
      token_logprobs: places.map(({ logprob }) => logprob),
      top_logprobs: hasTop
        ? places.map(({ top }) =>
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
  const chunk = (index: number, text: string, places: PlaceLogprobs[] | null, finish: string) => {
    const told = places && places.length > 0 ? JSON.stringify(logprobs(index, places)) : 'null'
    return `${head}[{"index":${index},"text":${JSON.stringify(text)},"logprobs":${told},"finish_reason":${finish}}]${tail}`
  }
  const textOf = (part: { kind: string; text?: string }) => part.text ?? ''
  return {
    whole: (choices, usage): CompletionResponse => ({
      id,
      object: 'text_completion',
      created,
      model,
      choices: choices.map(({ parts, places, finish_reason }, index) => ({
        index,
        text: parts.map(textOf).join(''),
        logprobs: places && logprobs(index, places),
        finish_reason,
      })),
      usage,
    }),
    opening: () => [],
    part: (index, part, places) => chunk(index, textOf(part), places, 'null'),
    closing: (index, finish_reason, places) => chunk(index, '', places, `"${finish_reason}"`),
    usage: (usage) => `${head}[],"usage":${JSON.stringify(usage)}}`,
  }
}
