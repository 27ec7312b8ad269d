// Speculative decoding without a second model. Drafts come from the answers that the model was trained on, from recent
// answers of the account, and from the prompt and the answer so far. The model verifies a draft in the same step, so
// drafts change the speed of an answer but not its text.
import { type Drafts, separator } from '../../models/draft-file.ts'
import { type Acceptance, createAcceptance, type Source } from './acceptance.ts'
import { continuation } from './answer-index.ts'
import { createStepCosts, type StepCosts } from './step-costs.ts'
import { createTokenHistory, matchMax, type TokenHistory } from './token-history.ts'

/** Tokens that may come next. `reach`: how probably the model agrees with all of them up to each, descending. */
interface Proposal {
  tokens: number[]
  reach: number[]
}

/** Drafts of one answer. */
export interface Drafter {
  /** Adds a token of the answer. If it was proposed, the drafter learns whether rightly. */
  append(token: number): void
  /** Proposes at most `max` tokens. */
  propose(max: number): Proposal
  /** Keeps the answer for the drafts of later ones. */
  finish(): void
}

interface DrafterOptions {
  account: string
  prompt: readonly number[]
  /** Tokens of the answer so far. */
  answer: readonly number[]
  /** The likeliest token is chosen, not a random one. */
  greedy: boolean
  /** A draft stops before such a token, as one that ends an answer. */
  endsAt(token: number): boolean
}

/** What the drafts of all answers of a model share. */
export interface Drafting {
  costs: StepCosts
  drafter(options: DrafterOptions): Drafter
}

interface Guess {
  token: number
  bucket: number
}

/** Longest draft of one sequence. */
const draftTokensMax = 24
// How many of the last tokens are searched for in the training answers.
const trainedMatches = [16, 8, 4, 2] as const
// So many places that agree make shorter matches superfluous.
const placesSure = 4
// A draft ends where the model would hardly ever come to.
const reachMin = 0.1
const recentTokensMax = 16_384
const accountsMax = 16

/** `answers`: those that the model was trained on, while they are in memory. */
export function createDrafting(answers: () => Drafts | null): Drafting {
  // Greedy answers follow a proposal more often than sampled ones.
  const acceptances = { greedy: createAcceptance(), sampled: createAcceptance() }
  /** Recent answers by account, the one used last at the end. Timing would reveal those of other accounts. */
  const recent = new Map<string, TokenHistory>()

  const keep = (account: string, answer: readonly number[]) => {
    let history = recent.get(account)
    recent.delete(account)
    if (!history || history.length() + answer.length >= recentTokensMax) history = createTokenHistory()
    recent.set(account, history)
    if (recent.size > accountsMax) recent.delete(recent.keys().next().value!)
    history.append(separator)
    for (const token of answer.slice(0, recentTokensMax)) history.append(token)
  }

  return {
    costs: createStepCosts(),
    drafter({ account, prompt, answer, greedy, endsAt }) {
      const acceptance = greedy ? acceptances.greedy : acceptances.sampled
      const history = createTokenHistory([...prompt, ...answer])
      /** Guesses for each token after those that are known, while the tokens follow `proposed`. */
      let guesses: Guess[][] = []
      let proposed: number[] = []
      let matched = 0
      const answerLength = () => history.length() - prompt.length

      return {
        append(token) {
          for (const { token: guessed, bucket } of guesses[matched] ?? []) acceptance.record(bucket, guessed === token)
          if (proposed[matched++] !== token) guesses = []
          history.append(token)
        },
        propose(max) {
          guesses = []
          proposed = []
          matched = 0
          const reaches: number[] = []
          const tail = history.end(matchMax)
          const answerTail = answerLength() > 0 ? history.end(Math.min(trainedMatches[0], answerLength())) : []
          if (answerTail.length < trainedMatches[0]) answerTail.unshift(separator)
          let reach = 1
          while (proposed.length < Math.min(max, draftTokensMax)) {
            const candidates = guess(acceptance, answers(), recent.get(account), history, answerTail, tail)
            guesses.push(candidates)
            const best = likeliest(acceptance, candidates)
            if (!best || endsAt(best.token)) break
            reach *= acceptance.probability(best.bucket)
            if (reach < reachMin) break
            proposed.push(best.token)
            reaches.push(reach)
            tail.push(best.token)
            answerTail.push(best.token)
          }
          return { tokens: proposed, reach: reaches }
        },
        finish: () => keep(account, history.end(answerLength())),
      }
    },
  }
}

/** What each source proposes as the next token. */
function guess(
  acceptance: Acceptance,
  answers: Drafts | null,
  recent: TokenHistory | undefined,
  history: TokenHistory,
  answerTail: readonly number[],
  tail: readonly number[],
): Guess[] {
  const guesses: Guess[] = []
  const add = (source: Source, matched: number, token: number, share: number, places: number) =>
    guesses.push({ token, bucket: acceptance.bucket(source, matched, share, places) })
  let shorter = Infinity
  for (const most of answers ? trainedMatches : []) {
    const matched = Math.min(most, answerTail.length)
    if (matched >= shorter) continue
    shorter = matched
    const draft = continuation(answers!, answerTail, matched)
    if (!draft) continue
    add('trained', most, draft.token, draft.share, draft.places)
    if (draft.share === 1 && draft.places >= placesSure) break
  }
  // Where the training answers say something, recent ones only made drafts worse.
  const again = guesses.length === 0 ? recent?.continuation(answerTail) : null
  if (again && again.token !== separator) add('recent', again.matched, again.token, again.share, again.places)
  const earlier = history.continuation(tail)
  if (earlier) add('prompt', earlier.matched, earlier.token, earlier.share, earlier.places)
  return guesses
}

function likeliest(acceptance: Acceptance, guesses: readonly Guess[]): Guess | null {
  let best: Guess | null = null
  let bestProbability = 0
  for (const guess of guesses) {
    const probability = acceptance.probability(guess.bucket)
    if (probability <= bestProbability) continue
    best = guess
    bestProbability = probability
  }
  return best
}
