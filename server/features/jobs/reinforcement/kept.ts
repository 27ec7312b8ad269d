// What is kept of the answers of a step for the job's owner to read: some prompts, with texts of bounded length.
import { rolloutsKept } from '../../../../contract/job-history.ts'
import type { KeptRollouts } from '../result.ts'
import { figuresOf, type GradedAnswer, type GradedGroup } from './rollouts.ts'

/** The most characters of the reason why a grader failed. */
const errorCharacters = 500

/**
 * Whether the answers of the step with this number are kept, of `total` that there will be. Those that are kept are
 * evenly spread, with the first and the last.
 */
export function isKept(number: number, total: number): boolean {
  if (number <= 1 || number >= total) return true
  // Two places are for the first and the last.
  return number % Math.ceil(total / (rolloutsKept.steps - 2)) === 0
}

/** What is kept of these answers. */
export function keptOf(step: number, split: KeptRollouts['split'], groups: readonly GradedGroup[]): KeptRollouts {
  const answers = groups.flatMap((group) => group.answers)
  const failures = answers.filter(({ score }) => score === null).length
  const reward = figuresOf({ groups: [...groups], grader_ms: [] }).reward ?? null
  return {
    step,
    split,
    figures: { reward, prompts: groups.length, answers: answers.length, failures },
    groups: shownGroups(groups).map((group) => ({
      row: group.row,
      answers: group.answers.slice(0, rolloutsKept.answers).map(shownAnswer),
      answer_count: group.answers.length,
    })),
  }
}

/** The first groups; the last of them gives its place to one whose grader failed, so that the reason can be read. */
function shownGroups(groups: readonly GradedGroup[]): GradedGroup[] {
  const shown = groups.slice(0, rolloutsKept.prompts)
  const failed = groups.find(hasFailed)
  return !failed || shown.includes(failed) ? shown : [...shown.slice(0, -1), failed]
}

const hasFailed = ({ answers }: GradedGroup) =>
  answers.slice(0, rolloutsKept.answers).some(({ score }) => score === null)

/** JSON of bounded length. */
const shownJson = (value: unknown) => JSON.stringify(value).slice(0, rolloutsKept.characters)

function shownAnswer(answer: GradedAnswer) {
  const { text, tool_calls, logprobs, cut, score, graders, watched, error, episode } = answer
  return {
    text: text.slice(0, rolloutsKept.characters),
    ...(tool_calls.length > 0 && { tool_calls: shownJson(tool_calls) }),
    ...(episode && { episode: { turns: episode.turns, messages: shownJson(episode.messages) } }),
    ...(Object.keys(watched).length > 0 && { watched_graders: watched }),
    tokens: logprobs.length,
    cut,
    score,
    graders: Object.fromEntries(
      Object.entries(graders).map(([name, { score, label, error, failure, latency_ms }]) => [
        name,
        {
          score,
          ...(label !== undefined && { label }),
          ...(error !== undefined && { error: error.slice(0, errorCharacters) }),
          ...(failure !== undefined && { failure }),
          ...(latency_ms !== undefined && { latency_ms }),
        },
      ]),
    ),
    error: error?.slice(0, errorCharacters) ?? null,
  }
}
