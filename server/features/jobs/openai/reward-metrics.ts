// What a step or an evaluation of a job that learns from graders measured, in the groups that OpenAI's API has.

type Data = Record<string, unknown>
type Named = Record<string, number>

/** Empty for the metrics of other jobs. */
export function rewardMetrics(data: Data): Data {
  if (data.graders) return metricsOf('train', data.reward, data.graders, data.graders_failed, data.answers, data)
  if (data.validation_graders) {
    const { validation_reward, validation_graders, validation_graders_failed, validation_answers } = data
    return metricsOf('valid', validation_reward, validation_graders, validation_graders_failed, validation_answers, {})
  }
  return {}
}

function metricsOf(
  part: 'train' | 'valid',
  reward: unknown,
  means: unknown,
  failed: unknown,
  answers: unknown,
  { sampling_seconds, grading_seconds, update_seconds }: Data,
): Data {
  const failures = (failed ?? {}) as Named
  return {
    scores: {
      graders: Object.entries(means as Named).map(([name, mean]) => ({ name, [`${part}_reward_mean`]: mean })),
      ...(reward !== undefined && { [`${part}_reward_mean`]: reward }),
    },
    errors: {
      graders: Object.entries(failures).map(([name, count]) => ({
        name,
        [`${part}_other_error_count`]: count,
        [`${part}_other_error_mean`]: count / Math.max(1, Number(answers)),
      })),
    },
    ...(update_seconds !== undefined && {
      timing: {
        step: {
          sampling: sampling_seconds,
          training: update_seconds,
          full_iteration: Number(sampling_seconds) + Number(grading_seconds) + Number(update_seconds),
        },
      },
    }),
  }
}
