// That an answer comes of a request that differs from the model's training, with a button that mends its prompt.
import { type AnswerWarning, answerWarnings } from '../../../contract/inference.ts'
import { Button } from '../../ui/button.tsx'
import { Notice } from '../../ui/feedback.tsx'
import { useTrainedPrompt } from './training-rows.ts'

export function TrainingNotice({
  warnings,
  tuned,
  system,
  onSystem,
}: {
  warnings: readonly AnswerWarning[]
  /** The id of the tuned model that answered, if it is known. */
  tuned: string | undefined
  /** The system prompt of the next question. */
  system: string
  onSystem: (system: string) => void
}) {
  const prompt = useTrainedPrompt(tuned)
  const isOfPrompt = warnings.some((warning) => warning.startsWith('system_prompt'))
  return (
    <Notice
      tone="warn"
      title="Asked otherwise than trained"
      action={
        isOfPrompt &&
        prompt !== undefined &&
        prompt.trim() !== system.trim() && (
          <Button size="sm" onClick={() => onSystem(prompt)}>
            {prompt ? 'Use the training prompt' : 'Remove the system prompt'}
          </Button>
        )
      }
    >
      {warnings.map((warning) => answerWarnings[warning] ?? warning).join(' ')} It may answer as if it was not trained.
    </Notice>
  )
}
