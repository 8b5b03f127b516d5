"""DQN, QR-DQN, TD3 and SAC's critics with prioritized replay written out in ``train``, to compare with."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch as th
from sb3_contrib import QRDQN
from stable_baselines3 import DQN, SAC, TD3
from torch.nn import functional

__all__ = ["DoubleDQN", "LapSAC", "LapTD3", "WeightedDQN", "WeightedDoubleDQN", "WeightedQRDQN", "double_dqn_errors"]


class Weighted:
    """``train`` of algorithms with one network and an explicit weighted loss."""

    def weighted_loss(self, batch: Any, discounts: Any) -> tuple[th.Tensor, th.Tensor]:
        """Return the loss, and the TD errors that become priorities."""
        raise NotImplementedError

    def train(self: Any, gradient_steps: int, batch_size: int = 100) -> None:
        """Train as DQN does, and update priorities after each step."""
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        for _ in range(gradient_steps):
            batch = self.replay_buffer.sample(batch_size, env=self._vec_normalize_env)
            loss, errors = self.weighted_loss(batch, self.gamma if batch.discounts is None else batch.discounts)
            self.policy.optimizer.zero_grad()
            loss.backward()
            if self.max_grad_norm is not None:
                th.nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
            self.policy.optimizer.step()
            self.replay_buffer.update_priorities(batch.indices, errors.detach().abs())
        self._n_updates += gradient_steps


class WeightedDQN(Weighted, DQN):
    """DQN with an explicit weighted Huber loss."""

    def weighted_loss(self, batch: Any, discounts: Any) -> tuple[th.Tensor, th.Tensor]:
        """Return the mean of weighted Huber losses."""
        with th.no_grad():
            targets = batch.rewards + (1 - batch.dones) * discounts * self.next_values(batch)
        values = th.gather(self.q_net(batch.observations), dim=1, index=batch.actions.long())
        losses = functional.smooth_l1_loss(values, targets, reduction="none")
        return (batch.weights * losses).mean(), targets - values

    def next_values(self, batch: Any) -> th.Tensor:
        """Return the values of the next observations."""
        values: th.Tensor = self.q_net_target(batch.next_observations).max(dim=1).values
        return values.reshape(-1, 1)


class WeightedDoubleDQN(WeightedDQN):
    """Double DQN (https://arxiv.org/abs/1509.06461) with an explicit weighted loss."""

    def next_values(self, batch: Any) -> th.Tensor:
        """Return the values of the actions that the trained network selects."""
        return double_values(self, batch)


class DoubleDQN(DQN):
    """Double DQN as users write it, without priorities."""

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """Train on unweighted losses."""
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        buffer: Any = self.replay_buffer
        for _ in range(gradient_steps):
            batch = buffer.sample(batch_size, env=self._vec_normalize_env)
            with th.no_grad():
                targets = batch.rewards + (1 - batch.dones) * self.gamma * double_values(self, batch)
            values = th.gather(self.q_net(batch.observations), dim=1, index=batch.actions.long())
            self.policy.optimizer.zero_grad()
            functional.smooth_l1_loss(values, targets).backward()  # type: ignore[no-untyped-call]
            th.nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
            self.policy.optimizer.step()
        self._n_updates += gradient_steps


def double_values(model: DQN, batch: Any) -> th.Tensor:
    """Return the target values of the actions that the trained network selects, ``(batch_size, 1)``."""
    actions = model.q_net(batch.next_observations).argmax(dim=1, keepdim=True)
    return th.gather(model.q_net_target(batch.next_observations), dim=1, index=actions)


def double_dqn_errors(model: DQN, batch: Any) -> th.Tensor:
    """Return the TD errors of Double DQN."""
    targets = batch.rewards + (1 - batch.dones) * model.gamma * double_values(model, batch)
    values = th.gather(model.q_net(batch.observations), dim=1, index=batch.actions.long())
    errors: th.Tensor = targets - values
    return errors


class WeightedQRDQN(Weighted, QRDQN):
    """QR-DQN with an explicit weighted quantile Huber loss."""

    def weighted_loss(self, batch: Any, discounts: Any) -> tuple[th.Tensor, th.Tensor]:
        """Return the mean of weighted quantile losses."""
        rows = th.arange(len(batch.actions))
        with th.no_grad():
            next_quantiles = self.quantile_net_target(batch.next_observations)
            next_values, next_actions = next_quantiles.mean(dim=1).max(dim=1)
            not_done = 1 - batch.dones
            targets = batch.rewards + not_done * discounts * next_quantiles[rows, :, next_actions]
            mean_targets = batch.rewards + not_done * discounts * next_values.reshape(-1, 1)
        all_quantiles = self.quantile_net(batch.observations)
        quantiles = all_quantiles[rows, :, batch.actions.reshape(-1).long()]
        errors = targets[:, None, :] - quantiles[:, :, None]
        huber = th.where(errors.abs() > 1, errors.abs() - 0.5, errors**2 * 0.5)
        probabilities = ((th.arange(self.n_quantiles) + 0.5) / self.n_quantiles)[None, :, None]
        losses = (th.abs(probabilities - (errors.detach() < 0).float()) * huber).sum(dim=1).mean(dim=1)
        values = th.gather(all_quantiles.mean(dim=1), dim=1, index=batch.actions.long())
        return (batch.weights.reshape(-1) * losses).mean(), mean_targets - values


class LapTD3(TD3):
    """TD3 without delayed policy updates, with LAP's Huber losses, scaled to the gradients that SB3's loss has."""

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """Train the critics, then the actor."""
        self.policy.set_training_mode(True)
        self._update_learning_rate([self.actor.optimizer, self.critic.optimizer])
        buffer: Any = self.replay_buffer
        for _ in range(gradient_steps):
            self._n_updates += 1
            batch = buffer.sample(batch_size)
            with th.no_grad():
                noise = batch.actions.clone().data.normal_(0, self.target_policy_noise)
                noise = noise.clamp(-self.target_noise_clip, self.target_noise_clip)
                next_actions = (self.actor_target(batch.next_observations) + noise).clamp(-1, 1)
                next_values = th.cat(self.critic_target(batch.next_observations, next_actions), dim=1)
                targets = batch.rewards + (1 - batch.dones) * self.gamma * next_values.min(dim=1, keepdim=True).values
            values = self.critic(batch.observations, batch.actions)
            losses = [2 * functional.huber_loss(value, targets) for value in values]
            self.critic.optimizer.zero_grad()
            th.stack(losses).sum().backward()  # type: ignore[no-untyped-call]
            self.critic.optimizer.step()
            errors = th.cat([(targets - value).abs() for value in values], dim=1).detach()
            buffer.update_priorities(batch.indices, errors.max(dim=1).values)
            if self._n_updates % self.policy_delay == 0:
                actor_loss = -self.critic.q1_forward(batch.observations, self.actor(batch.observations)).mean()
                self.actor.optimizer.zero_grad()
                actor_loss.backward()  # type: ignore[no-untyped-call]
                self.actor.optimizer.step()
                for online, target in ((self.critic, self.critic_target), (self.actor, self.actor_target)):
                    _follow(online, target, self.tau)


class LapSAC(SAC):
    """SAC with a constant entropy coefficient and LAP's Huber losses."""

    def train(self, gradient_steps: int, batch_size: int = 64) -> None:
        """Train the critics and the actor."""
        self.policy.set_training_mode(True)
        self._update_learning_rate([self.actor.optimizer, self.critic.optimizer])
        buffer: Any = self.replay_buffer
        coefficient = self.ent_coef_tensor
        for _ in range(gradient_steps):
            batch = buffer.sample(batch_size)
            actions, log_probabilities = self.actor.action_log_prob(batch.observations)
            with th.no_grad():
                next_actions, next_log_probabilities = self.actor.action_log_prob(batch.next_observations)
                next_values = th.cat(self.critic_target(batch.next_observations, next_actions), dim=1)
                next_values = next_values.min(dim=1, keepdim=True).values
                next_values = next_values - coefficient * next_log_probabilities.reshape(-1, 1)
                targets = batch.rewards + (1 - batch.dones) * self.gamma * next_values
            values = self.critic(batch.observations, batch.actions)
            self.critic.optimizer.zero_grad()
            th.stack([functional.huber_loss(value, targets) for value in values]).sum().backward()  # type: ignore[no-untyped-call]
            self.critic.optimizer.step()
            errors = th.cat([(targets - value).abs() for value in values], dim=1).detach()
            buffer.update_priorities(batch.indices, np.max(errors.numpy(), axis=1))
            values_of_policy = th.cat(self.critic(batch.observations, actions), dim=1).min(dim=1, keepdim=True).values
            actor_loss = (coefficient * log_probabilities.reshape(-1, 1) - values_of_policy).mean()
            self.actor.optimizer.zero_grad()
            actor_loss.backward()  # type: ignore[no-untyped-call]
            self.actor.optimizer.step()
            _follow(self.critic, self.critic_target, self.tau)
        self._n_updates += gradient_steps


def _follow(online: th.nn.Module, target: th.nn.Module, tau: float) -> None:
    with th.no_grad():
        for ours, theirs in zip(online.parameters(), target.parameters(), strict=True):
            theirs.mul_(1 - tau).add_(ours, alpha=tau)
